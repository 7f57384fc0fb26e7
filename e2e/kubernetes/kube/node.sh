#!/usr/bin/env bash
# The node's first process: lays out its namespaces, starts every component, and then only reaps. When it ends, the
# kernel ends all the rest. Nothing of it shows outside but processes and one cgroup per hierarchy.
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"
cd "$KUBE_DIR"
t0=$(date +%s%N)
stage() { printf '%6d ms  %s\n' $((($(date +%s%N) - t0) / 1000000)) "$1"; }

### namespaces
mount --make-rprivate /
# Keep no copy of others' FUSE mounts: it would hold them open past their umount.
mapfile -t foreign < <(awk '$3 ~ /^fuse(\.|blk|$)/ {print $2}' /proc/self/mounts)
for m in "${foreign[@]}"; do umount -l "$(printf %b "$m")"; done
mapfile -t hierarchies < <(cut -d: -f2 /proc/self/cgroup)
umount -R /sys
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for h in "${hierarchies[@]}"; do
	case $h in
	"") mkdir /sys/fs/cgroup/unified; mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified ;;
	name=*) mkdir "/sys/fs/cgroup/${h#name=}"; mount -t cgroup -o "none,$h" cgroup "/sys/fs/cgroup/${h#name=}" ;;
	*) mkdir "/sys/fs/cgroup/$h"; mount -t cgroup -o "$h" cgroup "/sys/fs/cgroup/$h" ;;
	esac
done
# What the components make below these folders goes to state/over, not to the host.
for d in /var/lib /var/log /opt /usr/libexec; do
	o=$KUBE_DIR/state/over/$(echo "${d#/}" | tr / -)
	mkdir -p "$o/upper" "$o/work"
	mount -t overlay overlay -o "lowerdir=$d,upperdir=$o/upper,workdir=$o/work" "$d"
done
# Mount propagation into Pods needs the kubelet's tree to be a shared mount.
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
# The cache directory is ext4 or what else the host has: not an overlay.
for d in kubelet:/var/lib/kubelet pods:/var/log/pods containers:/var/log/containers shardwell:/var/lib/shardwell; do
	mkdir -p "state/${d%%:*}" "${d#*:}"
	mount --bind "state/${d%%:*}" "${d#*:}"
	# A peer group of its own: else mounts made below it show in state/ as well.
	mount --make-private "${d#*:}"
	mount --make-shared "${d#*:}"
done
# The kubelet sets these for the whole machine: let it write plain files instead.
mkdir -p state/sysctl
while read -r key value; do
	echo "$value" > "state/sysctl/$key"
	mount --bind "state/sysctl/$key" "/proc/sys/$(echo "$key" | tr . /)"
done <<- 'SYSCTLS'
	vm.overcommit_memory 1
	vm.panic_on_oom 0
	kernel.panic 10
	kernel.panic_on_oops 1
	kernel.keys.root_maxkeys 1000000
	kernel.keys.root_maxbytes 25000000
SYSCTLS
# The kubelet wants a default route.
ip route show default | grep -q . || ip route add default dev eth0
echo 1 > /proc/sys/net/ipv4/ip_forward

### configuration
mkdir -p state/{pki,kubeconfig,etcd,cni}
chmod 700 state/etcd
[ -e state/pki/sa.key ] || {
	openssl genrsa -out state/pki/sa.key 2048 2> /dev/null
	openssl rsa -in state/pki/sa.key -pubout -out state/pki/sa.pub 2> /dev/null
}
cat > state/pki/tokens.csv <<- CSV
	admin-token,admin,1,system:masters
	kubelet-token,system:node:$node_name,2,system:nodes
	kcm-token,system:kube-controller-manager,3
	scheduler-token,system:kube-scheduler,4
CSV
for u in admin kubelet kcm scheduler; do
	cat > "state/kubeconfig/$u" <<- YAML
		apiVersion: v1
		kind: Config
		clusters: [{name: c, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $KUBE_DIR/state/pki/apiserver.crt}}]
		users: [{name: u, user: {token: $u-token}}]
		contexts: [{name: x, context: {cluster: c, user: u}}]
		current-context: x
	YAML
done
# Critical Pods are admitted where a quota lets them in, as in GKE.
cat > state/admission.yaml <<- YAML
	apiVersion: apiserver.config.k8s.io/v1
	kind: AdmissionConfiguration
	plugins:
	  - name: ResourceQuota
	    configuration:
	      apiVersion: apiserver.config.k8s.io/v1
	      kind: ResourceQuotaConfiguration
	      limitedResources:
	        - resource: pods
	          matchScopes:
	            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
YAML
cat > state/kubelet.yaml <<- YAML
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
	authorization: {mode: AlwaysAllow}
	cgroupDriver: cgroupfs
	failCgroupV1: false
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	failSwapOn: false
	resolvConf: ""
	makeIPTablesUtilChains: false
	maxPods: 150
	# Volumes are published again at each synchronisation: do not make tests of that wait for a minute.
	syncFrequency: 10s
	volumeStatsAggPeriod: 5s
	registerWithTaints: [{key: shardwell.io/not-ready, effect: NoSchedule}]
	# Images cannot be pulled again: never collect them, and do not evict on a fullish disk.
	imageGCHighThresholdPercent: 100
	evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
YAML
cat > state/containerd.toml <<- TOML
	version = 2
	root = "$KUBE_DIR/state/containerd"
	state = "/run/containerd"
	[grpc]
	  address = "/run/containerd/containerd.sock"
	[plugins."io.containerd.grpc.v1.cri"]
	  # Without CAP_SYS_RESOURCE, as in many containers, a negative oom_score_adj cannot be set: runc would fail.
	  restrict_oom_score_adj = true
	  sandbox_image = "registry.k8s.io/pause:3.10"
	  [plugins."io.containerd.grpc.v1.cri".cni]
	    bin_dir = "$build/debs/x/usr/lib/cni"
	    conf_dir = "$KUBE_DIR/state/cni"
	  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
	    runtime_type = "io.containerd.runc.v2"
	    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
	      BinaryName = "$build/debs/x/usr/sbin/runc"
	      SystemdCgroup = false
TOML
cat > state/cni/10-pods.conflist <<- 'JSON'
	{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,
	 "ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
JSON

### components
stage "namespaces and configuration"
start_containerd
start_etcd
wait_for 60 curl -fs http://127.0.0.1:2379/health
stage "etcd healthy"
start_kube-apiserver
wait_for 180 kubectl get --raw /readyz
stage "kube-apiserver ready"
start_kube-controller-manager
start_kube-scheduler
wait_for 60 ctr -n k8s.io version
for image in "$build"/img/*.tar "$KUBE_DIR"/img/*.tar; do
	[ -e "$image" ] || continue
	[ -e "state/imported-$(basename "$image")" ] && continue
	ctr -n k8s.io images import "$image" > /dev/null
	touch "state/imported-$(basename "$image")"
done
stage "containerd up, images imported"
start_kubelet
wait_for 120 kubectl wait --for=condition=Ready node/$node_name --timeout=120s
stage "node Ready"
wait_for 60 kubectl get serviceaccount default
stage "default service account there"
touch run/ready

# Reap, until ended.
trap 'exit 0' TERM
while :; do
	sleep 3600 &
	wait $! || true
done
