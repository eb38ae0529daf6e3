"""A real Kubernetes without containers: API server, controllers and scheduler of Kubernetes 1.34, and kubelets whose
containers are processes of this machine. All of it lives in network, process and mount namespaces of its own, which
`make kubernetes` makes, and goes with them."""
