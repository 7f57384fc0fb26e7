# What there is to do here. `make demo` and `make test` need Go, make and root, and
# nothing else: they get the rest themselves.

# The product is pure Go: one static file that runs on any Linux of its architecture.
export CGO_ENABLED = 0
# Modules are taken as go.sum has them; a build never changes go.mod.
export GOFLAGS = -mod=readonly

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
# The version is set by the linker, as the Go command does not know tags of a checkout. -s and -w
# leave out the symbol table and DWARF: a third of the file, and stack traces do not need them.
LDFLAGS := -s -w -X github.com/shardwell/shardwell/internal/node.Version=$(VERSION) -X main.Version=$(VERSION)
# -trimpath keeps the paths of this machine out of the file, so that two machines build the same.
BUILD := go build -trimpath -ldflags '$(LDFLAGS)'

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GEN_GO_GRPC := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

.PHONY: image manifests e2e-kubernetes e2e-kubeletclient build demo test unit e2e check fmt vet staticcheck race vuln bench bench-read bench-cache bench-prefetch bench-broadcast bench-scale bench-pods bench-handover generate clean

build: bin/shardwell bin/shardwell-keeper

# Go knows best what changed; .PHONY'd, so that it is asked every time.
.PHONY: bin/shardwell bin/shardwell-keeper
bin/shardwell:
	$(BUILD) -o $@ ./cmd/shardwell

bin/shardwell-keeper:
	$(BUILD) -o $@ ./cmd/shardwell-keeper

# All binaries of the product as an OCI image archive, without Docker: `ctr images import`, `podman load`. The
# tool has its own module, as its libraries are none of the product's.
IMAGE := ghcr.io/shardwell/shardwell
ARCHIVE := $(CURDIR)/bin/shardwell-image.tar
image:
	mkdir -p bin/image
	$(BUILD) -o bin/image/ ./cmd/...
	cd e2e/kubernetes && go run ./image -o $(ARCHIVE) -name $(IMAGE):$(VERSION) -version $(VERSION) \
		-arch $$(go env GOARCH) -entrypoint /usr/bin/shardwell $$(cd $(CURDIR)/bin/image && ls | sed 's|.*|$(CURDIR)/bin/image/&=/usr/bin/&|')

# A cluster on this machine: fails when a byte differs or the origin is read twice.
demo: bin/shardwell
	bin/shardwell demo --check

# Everything that says whether the product works: parts alone, then the real thing.
test: unit e2e

# -count=1: tests with kernel mounts and processes depend on what Go's test cache cannot see.
# -timeout: a test that hangs is a failure, and says where it hung.
unit:
	go test -count=1 -timeout 15m ./...

# Real processes, network namespaces, kernel mounts and readers. Its own module, as it needs
# servers and clients that the product must not depend on. It sets itself up. -p 1: packages make
# namespaces and time things, one after the other.
e2e: bin/shardwell bin/shardwell-keeper
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go test -p 1 -count=1 -timeout 40m ./...
	cd e2e/kubernetes && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go test -count=1 -timeout 15m ./image ./chart

# The product in a real Kubernetes of one node, installed by Helm. The first call compiles Kubernetes (ten minutes on
# two idle cores) into a folder that git ignores and `make clean` leaves. Upgrades are to a build that differs in
# its version. PODS_FLAGS="-run Keeper" runs a part.
e2e-kubernetes: image
	$(MAKE) image VERSION=$(VERSION)-next ARCHIVE=$(CURDIR)/bin/shardwell-image-next.tar
	./e2e/setup
	./e2e/kubernetes/build.sh
	cd e2e/kubernetes && SHARDWELL_IMAGE=$(CURDIR)/bin/shardwell-image.tar SHARDWELL_IMAGE_NEXT=$(CURDIR)/bin/shardwell-image-next.tar \
		go test -v -count=1 -timeout 90m $(PODS_FLAGS) ./pods

# The driver beside the kubelet's own client of CSI, in one process. The first call compiles a part of Kubernetes: three
# minutes on two idle cores.
e2e-kubeletclient: bin/shardwell
	./e2e/setup
	cd e2e/kubeletclient && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go test -count=1 -timeout 15m ./...

# deploy/manifests is made from the chart, for people without Helm; a test compares them.
manifests:
	cd e2e/kubernetes && go run ./manifests

# What a change must pass besides the tests.
check: fmt vet staticcheck race vuln

# gofmt lists files and ends with 0 even so; make it fail.
fmt:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not formatted:"; echo "$$out"; exit 1; fi

vet:
	go vet ./...
	cd e2e && go vet ./...
	cd e2e/kubernetes && go vet ./...

staticcheck:
	go run $(STATICCHECK) ./...

# The race detector is C code: the one place where cgo is on.
race:
	CGO_ENABLED=1 go test -race -count=1 -timeout 30m ./...

# The data of known vulnerabilities is on the network. Where it cannot be had this says so and goes
# on; what it finds fails.
vuln:
	@if out=$$(go run $(GOVULNCHECK) ./... 2>&1); then echo "$$out" | tail -1; \
	elif echo "$$out" | grep 'fetching vulnerabilities:'; then echo "govulncheck: its data cannot be had here, nothing was checked"; \
	else echo "$$out"; exit 1; fi

# Benchmarks of packages. -run='^$$' runs no tests beside them.
bench:
	go test -run='^$$' -bench=. -benchmem -timeout 30m ./...

# The figures that reads are judged by, one JSON object a line.
bench-read: bin/shardwell
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^(ring|warm|peer|cold|unshaped|once|names|million|readers)$$'

# The figures that the cache is judged by, likewise: the policy alone, then real nodes.
bench-cache: bin/shardwell
	go test -run='^$$' -bench=Figures -benchtime=1x ./cache/evict | grep '^{'
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^(epochs|diskfaults|restart|verify|openfiles)$$'

# The figures that prefetch is judged by, likewise.
bench-prefetch: bin/shardwell
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^(firstSample|wdsEpochs|randomReads|preadParallel|tars|warmup)$$'

# The figures that broadcasts are judged by: eight nodes and more behind links of 50 Mbit/s, in real
# processes, mounts and TCP. Half an hour; the machine should have nothing else to do.
bench-broadcast: bin/shardwell
	./e2e/setup aria2 python3-libtorrent
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^broadcast' -rounds 3

# The planner on a model of 1,000 and 10,000 nodes. -benchtime=1x: one run of each is the figure.
bench-scale:
	go test -run='^$$' -bench=Scale -benchtime=1x -timeout 60m ./peer/broadcast | grep '^{'

# The figures that handing mounts over is judged by: 1,000 kills and 50 upgrades of a node under readers of
# every kind, and the read loop beside go-fuse's own server. Half an hour; HANDOVER_FLAGS="-kills 100" makes it shorter.
bench-handover: bin/shardwell bin/shardwell-keeper
	go test -run='^$$' -bench=LoopFigures -benchtime=1x ./fuse | grep '^{'
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^bridge' $(HANDOVER_FLAGS)

# What Pods are judged by, as far as it needs no Kubernetes: csi-sanity, and publishes as a kubelet makes them.
bench-pods: bin/shardwell
	./e2e/setup
	cd e2e && SHARDWELL_BIN=$(CURDIR)/bin/shardwell go run ./bench -run '^pods$$'

# Generated code is committed, so that building needs no protoc (Debian: protobuf-compiler).
generate:
	mkdir -p .cache/bin
	GOBIN=$(CURDIR)/.cache/bin go install $(PROTOC_GEN_GO)
	GOBIN=$(CURDIR)/.cache/bin go install $(PROTOC_GEN_GO_GRPC)
	PATH=$(CURDIR)/.cache/bin:$$PATH go generate ./...

clean:
	rm -rf bin .cache
