#!/usr/bin/env bash
# Runs a command, or a function of lib.sh, inside the node: in its namespaces and in its cgroups, which entering the
# cgroup namespace alone does not do.
#   usage: KUBE_DIR=DIR NODE_IP=ADDRESS in.sh COMMAND...
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"
while read -r own; do echo $$ > "$own/cgroup.procs"; done < "$KUBE_DIR/run/cgroups"
holder=$(cat "$KUBE_DIR/run/holder.pid")
if [ "$(type -t "$1")" = function ]; then
	exec nsenter -t "$holder" -m -n -p -C --wd=/ -- bash -c ". '$here/lib.sh'; $*"
fi
exec nsenter -t "$holder" -m -n -p -C --wd=/ -- "$@"
