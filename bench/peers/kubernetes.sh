#!/usr/bin/env bash
# Build etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl from their public Go modules into FOLDER:
#   kubernetes.sh FOLDER      with Go 1.24 or newer: ten minutes of a processor, one where Go has compiled them before; 1.5 GB of memory
set -euo pipefail
version=1.34.2 staging=v0.34.2 etcd=v3.6.4 # staging: the version of the libraries that Kubernetes releases with itself
target=${1:?the folder for the binaries}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS="-mod=mod -buildvcs=false" GOWORK=off

build() { # NAME PACKAGE [LDFLAGS]: in the module of the current folder
  echo "keylane: building $1" >&2
  go build -p 2 -trimpath -ldflags "-s -w ${3:-}" -o "$target/$1" "$2"
}

mkdir "$work/kubernetes" "$work/etcd"
cd "$work/kubernetes"
printf 'module build\ngo 1.24\nrequire k8s.io/kubernetes v%s\n' "$version" >go.mod
for module in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap \
  code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib \
  dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy kube-scheduler \
  kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin sample-controller; do
  echo "replace k8s.io/$module => k8s.io/$module $staging" >>go.mod # Kubernetes' own go.mod has them as folders
done
stamp="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1"
stamp="$stamp -X k8s.io/component-base/version.gitMinor=34 -X k8s.io/client-go/pkg/version.gitVersion=v$version"
for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  build "$name" "k8s.io/kubernetes/cmd/$name" "$stamp"
done

cd "$work/etcd" # Debian's is too old for the watch lists that Spark's client asks for
printf 'module build\ngo 1.24\nrequire go.etcd.io/etcd/server/v3 %s\n' "$etcd" >go.mod
build etcd go.etcd.io/etcd/server/v3
