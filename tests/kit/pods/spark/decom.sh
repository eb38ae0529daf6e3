#!/bin/bash
# The preStop hook that spark.decommission.enabled puts into the pods of executors: SIGPWR, then wait until the executor has ended.
executor=$(pgrep -f KubernetesExecutorBackend | tail -1)
kill -PWR "$executor"
while kill -0 "$executor" 2>/dev/null; do sleep 0.1; done
