package s3_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// A name that stands for this machine is refused where it is connected to, and nothing is asked of it.
func TestRefuseLocal(t *testing.T) {
	asked := 0
	f := serve(t, func(int, http.ResponseWriter, *http.Request) { asked++ })
	for _, host := range []string{"127.0.0.1", "localhost"} {
		s := newStore(t, s3.Config{Endpoint: strings.Replace(f.URL, "127.0.0.1", host, 1), RefuseLocal: true})
		_, err := get(t, s, 0, 1)
		if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), "address of this machine") || asked > 0 {
			t.Errorf("%s: got %v after %d requests", host, err, asked)
		}
	}
}

func TestLocalAddr(t *testing.T) {
	for addr, local := range map[string]bool{
		"127.0.0.2": true, "::1": true, "::ffff:127.0.0.1": true, "169.254.169.254": true, "fe80::1%eth0": true, "0.0.0.0": true, "::": true,
		"ff02::1": true, "fd00:ec2::254": true, "fd00:ec2::23": true, "fd20:ce::254": true, "168.63.129.16": true, "100.100.100.200": true,
		"64:ff9b::169.254.169.254": true, "64:ff9b::127.0.0.1": true, "::169.254.169.254": true, "64:ff9b::8.8.8.8": false, "fd00:ec3::254": false, "10.0.0.1": false, "192.168.1.1": false, "8.8.8.8": false, "2001:db8::1": false,
	} {
		if got := s3.LocalAddr(netip.MustParseAddr(addr)); got != local {
			t.Errorf("%s: got %v, want %v", addr, got, local)
		}
	}
}
