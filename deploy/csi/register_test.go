package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/shardwell/shardwell/internal/control"
)

// absentDaemon is a daemon that does not run, until it has a version.
type absentDaemon struct {
	Daemon
	version string
}

func (d *absentDaemon) Version(context.Context) (control.Version, error) {
	if d.version == "" {
		return control.Version{}, errors.Join(control.ErrNoNode)
	}
	return control.Version{Version: d.version}, nil
}

// The kubelet finds the driver by the socket in its directory, also when an earlier driver left one, and
// hears that it is ready when the daemon is.
func TestRegistration(t *testing.T) {
	kubelet, log := t.TempDir(), &lines{}
	if err := os.Mkdir(filepath.Join(kubelet, "plugins_registry"), 0o750); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, kubelet: kubelet, log: log}
	daemon := &absentDaemon{}
	serve := func() (registerapi.RegistrationClient, csi.IdentityClient, func()) {
		conn, stop := m.driver(func(c *Config) {
			c.SelfRegister, c.RegistrationPath, c.Daemon = true, "/var/lib/kubelet/plugins/csi.shardwell.io/csi.sock", daemon
		})
		reg := dial(t, filepath.Join(kubelet, "plugins_registry", "csi.shardwell.io-reg.sock"))
		return registerapi.NewRegistrationClient(reg), csi.NewIdentityClient(conn), stop
	}
	for range 2 {
		reg, id, stop := serve()
		info, err := reg.GetInfo(t.Context(), &registerapi.InfoRequest{})
		if err != nil || info.GetType() != "CSIPlugin" || info.GetName() != DriverName || !strings.HasSuffix(info.GetEndpoint(), "/csi.sock") {
			t.Errorf("registration: %v, %v", info, err)
		}
		if _, err := reg.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
			t.Errorf("registration status: %v", err)
		}
		for _, version := range []string{"", "v1"} {
			daemon.version = version
			probe, err := id.Probe(t.Context(), &csi.ProbeRequest{})
			if err != nil || probe.GetReady().GetValue() != (version != "") {
				t.Errorf("probe with daemon version %q: %v, %v", version, probe, err)
			}
		}
		stop()
	}
	if !strings.Contains(log.String(), "registered with the kubelet") {
		t.Errorf("log: %s", log)
	}
}

// A second driver waits for the first to end, and neither takes the other's socket away.
func TestOneDriverAtATime(t *testing.T) {
	m := &machine{t: t, kubelet: t.TempDir(), log: &lines{}}
	socket := filepath.Join(t.TempDir(), "csi.sock")
	change := func(c *Config) { c.Endpoint, c.Daemon = socket, &absentDaemon{version: "v1"} }
	_, stop := m.driver(change)
	probe := func() {
		t.Helper()
		if _, err := csi.NewIdentityClient(dial(t, socket)).Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
			t.Error(err)
		}
	}
	probe()
	_, stopSecond := m.driver(change)
	stop()
	probe()
	stopSecond()
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket stays behind")
	}
}
