#!/usr/bin/env bash
# Starts the node in namespaces and cgroups of its own; it ends with this process. The network namespace is that of the caller.
#   usage: KUBE_DIR=DIR NODE_IP=ADDRESS start.sh
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"
rm -rf "$KUBE_DIR/run"
mkdir -p "$KUBE_DIR/run/log" "$KUBE_DIR/state"

# A cgroup below the current one in each hierarchy, which the cgroup namespace made afterwards shows as "/".
: > "$KUBE_DIR/run/cgroups"
own_cgroups=$(cat /proc/self/cgroup) # read before any of it changes
while IFS=: read -r _ names path; do
	case $names in
	"") dir=/sys/fs/cgroup/unified$path; [ -d "$dir" ] || dir=/sys/fs/cgroup$path ;;
	name=*) dir=/sys/fs/cgroup/${names#name=}$path ;;
	*) dir=/sys/fs/cgroup/$names$path ;;
	esac
	own=${dir%/}/$(basename "$(dirname "$KUBE_DIR")")-kube
	mkdir -p "$own"
	if [ "$names" = cpuset ]; then
		cat "$dir/cpuset.cpus" > "$own/cpuset.cpus"
		cat "$dir/cpuset.mems" > "$own/cpuset.mems"
	fi
	echo "$own" >> "$KUBE_DIR/run/cgroups"
	echo $$ > "$own/cgroup.procs"
done <<< "$own_cgroups"
echo $$ > "$KUBE_DIR/run/unshare.pid"
exec unshare --mount --pid --cgroup --fork --kill-child --mount-proc bash "$here/node.sh"
