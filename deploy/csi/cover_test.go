package csi

import "testing"

// A volume whose mount ends again and again is shown each time over what was shown before, until there
// are too many; then it begins anew.
func TestCoveredMountsAreBounded(t *testing.T) {
	f := newFake()
	s, _ := fakeDriver(t, f, Policy{})
	target := s.at("a")
	s.mustPublish(t, inline("a", target, map[string]string{"bucketName": "data"}))
	most := 1
	for i := range 2*maxLayers + 1 {
		f.die()
		s.driver.volumes.mend(t.Context())
		if !f.alive(target) {
			t.Fatalf("after death %d the volume is not shown again", i+1)
		}
		all, err := f.table()
		if err != nil {
			t.Fatal(err)
		}
		n, want := layers(all, target), (i+1)%maxLayers+1
		if n != want {
			t.Errorf("after death %d there are %d mounts over each other, want %d", i+1, n, want)
		}
		most = max(most, n)
	}
	if most != maxLayers {
		t.Errorf("at most there were %d mounts over each other, want %d", most, maxLayers)
	}
	s.mustUnpublish(t, "a", target)
	if all, err := f.table(); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}
