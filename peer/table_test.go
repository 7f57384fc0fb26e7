package peer

import "testing"

var _ Members = (*Directory)(nil)

func TestDirectoryOfAKey(t *testing.T) {
	for key, want := range map[string]string{"": "", "a": "", "a/": "a/", "a/b/c.tar": "a/b/", "/x": "/"} {
		if got := directory(key); got != want {
			t.Errorf("directory(%q) = %q, want %q", key, got, want)
		}
	}
}
