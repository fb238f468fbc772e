#!/usr/bin/env bash
# Prints a Service for each of N servers: services.sh N | kubectl apply -f -
# Each server needs an address of its own: a Service over all pods, even with sessionAffinity, sends a client to another server
# while its own restarts, and that server does not have the client's run.
set -euo pipefail
if ! [[ ${1:-} =~ ^[1-9][0-9]{0,3}$ ]]; then
  echo "usage: services.sh N | kubectl apply -f -" >&2
  exit 2
fi
for ((i = 0; i < $1; ++i)); do
  cat <<YAML
---
apiVersion: v1
kind: Service
metadata:
  name: cleave-$i
  labels: {app.kubernetes.io/name: cleave}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local  # keeps the clients' addresses, which limits.connections_per_address counts
  selector:
    app.kubernetes.io/name: cleave
    statefulset.kubernetes.io/pod-name: cleave-$i
  ports:
    - {name: cleave, port: 4800, targetPort: cleave}
YAML
done
