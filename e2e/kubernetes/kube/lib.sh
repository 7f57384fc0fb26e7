# Sourced by the scripts of the node. KUBE_DIR is the node's own folder, NODE_IP its address.
#   KUBE_DIR/state  what a restart of the node finds again
#   KUBE_DIR/run    process ids, logs, and the mark that the node is ready
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
build=$here/../build
export PATH=$build/bin:$build/debs/x/usr/bin:$build/debs/x/usr/sbin:$PATH
export KUBECONFIG=$KUBE_DIR/state/kubeconfig/admin
export KUBECACHEDIR=$KUBE_DIR/state/kubecache
export HELM_CACHE_HOME=$KUBE_DIR/state/helm HELM_CONFIG_HOME=$KUBE_DIR/state/helm HELM_DATA_HOME=$KUBE_DIR/state/helm
node_name=node-1

# start NAME COMMAND...: starts COMMAND in the background, with its pid, as the node's
# PID namespace numbers it, in run/NAME.pid.
start() {
	local name=$1
	shift
	"$@" >> "$KUBE_DIR/run/log/$name.log" 2>&1 < /dev/null &
	echo $! > "$KUBE_DIR/run/$name.pid"
}

wait_for() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	until "$@" > /dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { echo "gave up waiting for: $*" >&2; return 1; }
		sleep 0.1
	done
}

start_etcd() {
	# It is ended by SIGKILL only; a test needs no fsync.
	start etcd etcd --name node --data-dir "$KUBE_DIR/state/etcd" --unsafe-no-fsync \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380
}

start_kube-apiserver() {
	start kube-apiserver kube-apiserver \
		--etcd-servers=http://127.0.0.1:2379 \
		--advertise-address="$NODE_IP" --secure-port=6443 --cert-dir="$KUBE_DIR/state/pki" \
		--token-auth-file="$KUBE_DIR/state/pki/tokens.csv" --authorization-mode=Node,RBAC \
		--enable-admission-plugins=NodeRestriction --allow-privileged=true \
		--admission-control-config-file="$KUBE_DIR/state/admission.yaml" \
		--service-cluster-ip-range=10.96.0.0/24 \
		--service-account-issuer=https://kubernetes.default.svc \
		--service-account-key-file="$KUBE_DIR/state/pki/sa.pub" \
		--service-account-signing-key-file="$KUBE_DIR/state/pki/sa.key" \
		--kubelet-preferred-address-types=InternalIP
}

start_kube-controller-manager() {
	# Without credentials of their own its controllers never take the taints of a new node away.
	start kube-controller-manager kube-controller-manager --kubeconfig="$KUBE_DIR/state/kubeconfig/kcm" \
		--leader-elect=false --use-service-account-credentials=true --root-ca-file="$KUBE_DIR/state/pki/apiserver.crt" \
		--service-account-private-key-file="$KUBE_DIR/state/pki/sa.key"
}

start_kube-scheduler() {
	start kube-scheduler kube-scheduler --kubeconfig="$KUBE_DIR/state/kubeconfig/scheduler" --leader-elect=false
}

start_containerd() {
	start containerd containerd --config "$KUBE_DIR/state/containerd.toml"
}

# It ends at once when containerd does not answer.
start_kubelet() {
	wait_for 60 ctr -n k8s.io version
	start kubelet kubelet --kubeconfig="$KUBE_DIR/state/kubeconfig/kubelet" --config="$KUBE_DIR/state/kubelet.yaml" \
		--hostname-override=$node_name --node-ip="$NODE_IP" \
		--node-labels=topology.kubernetes.io/zone=zone-a,example.com/rack=rack-1
}
