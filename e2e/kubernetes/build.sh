#!/usr/bin/env bash
# Makes what a one-node Kubernetes needs, into build/ (kept, ignored by git): the components and etcd from the Go module
# proxy, the container runtime out of Debian packages (unpacked, not installed), and the images. What is there already is
# left alone. The first call compiles Kubernetes: ten minutes on two idle cores, 3 GB of Go's build cache, 0.5 GB here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build=$PWD/build
mkdir -p "$build/bin" "$build/debs" "$build/img"

say() { echo "e2e/kubernetes/build.sh: $*" >&2; }

# The components carry their version in a variable that the linker sets; clients ask for it.
build_components() {
	local kube v ld c
	kube=$(go -C components list -m -f '{{.Version}}' k8s.io/kubernetes)
	v=k8s.io/component-base/version
	ld="-s -w -X $v.gitVersion=$kube -X $v.gitMajor=1 -X $v.gitMinor=$(echo "$kube" | cut -d. -f2) -X $v.gitTreeState=clean"
	for c in kube-apiserver kubelet kube-controller-manager kube-scheduler kubectl; do
		build_one "$c" "$kube" "k8s.io/kubernetes/cmd/$c" "$ld"
	done
	build_one etcd "$(go -C components list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)" go.etcd.io/etcd/server/v3 '-s -w'
}

# build_one NAME VERSION PACKAGE LDFLAGS
build_one() {
	[ -x "$build/bin/$1-$2" ] && return
	local from=$SECONDS
	say "compiling $1 $2"
	CGO_ENABLED=0 GOFLAGS=-mod=readonly go -C components build -trimpath -ldflags "$4" -o "$build/bin/.new" "$3"
	mv "$build/bin/.new" "$build/bin/$1-$2"
	ln -sf "$1-$2" "$build/bin/$1"
	say "$1 took $((SECONDS - from)) s"
}

# build_module NAME MODULE PACKAGE builds a program of a module that this one requires.
build_module() {
	local version
	version=$(go list -m -f '{{.Version}}' "$2")
	[ -x "$build/bin/$1-$version" ] && return
	say "compiling $1 $version"
	CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -ldflags '-s -w' -o "$build/bin/.new" "$3"
	mv "$build/bin/.new" "$build/bin/$1-$version"
	ln -sf "$1-$version" "$build/bin/$1"
}

unpack_debian() {
	[ -e "$build/debs/.done-1" ] && return
	say "fetching containerd, runc, the CNI plugins and busybox"
	timeout 300 apt-get -qq update
	(cd "$build/debs" && timeout 600 apt-get -qq download containerd runc busybox-static containernetworking-plugins)
	local d
	for d in "$build"/debs/*.deb; do dpkg -x "$d" "$build/debs/x"; done
	touch "$build/debs/.done-1"
}

# The images that Pods of the tests run besides the product's: no registry is asked for any.
make_images() {
	local out=$build/img root=$build/img/root a links=()
	[ -e "$build/img/.done-1" ] && return
	say "making the images pause and busybox"
	mkdir -p "$root"
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/pause" ./images/pause
	go run ./image -o "$out/pause.tar" -name registry.k8s.io/pause:3.10 -entrypoint /pause -ca '' "$root/pause=/pause"
	cp "$build/debs/x/bin/busybox" "$root/busybox"
	for a in $("$root/busybox" --list); do
		[ "$a" = busybox ] || links+=(-link "/bin/$a=busybox")
	done
	go run ./image -o "$out/busybox.tar" -name docker.io/library/busybox:1 -entrypoint /bin/sh -ca '' "${links[@]}" "$root/busybox=/bin/busybox"
	touch "$build/img/.done-1"
}

build_helm() {
	build_module helm helm.sh/helm/v4 helm.sh/helm/v4/cmd/helm
}

unpack_debian
build_components
build_helm
make_images
say "ready: $build"
