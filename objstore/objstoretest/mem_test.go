package objstoretest_test

import (
	"testing"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

func memTarget(m *objstoretest.Mem, s objstore.Store) objstoretest.Target {
	return objstoretest.Target{
		Store:  s,
		Put:    func(key string, data []byte) error { m.Put(key, data); return nil },
		Delete: func(key string) error { m.Delete(key); return nil },
	}
}

func TestMem(t *testing.T) {
	objstoretest.TestStore(t, func(*testing.T) objstoretest.Target {
		m := objstoretest.NewMem()
		return memTarget(m, m)
	})
}

func TestWrappersKeepThePromises(t *testing.T) {
	objstoretest.TestStore(t, func(*testing.T) objstoretest.Target {
		m := objstoretest.NewMem()
		s := objstore.NewRetry(objstore.NewLimit(objstore.NewCount(objstoretest.NewFault(m), new(objstore.Stats)), 4, 1<<30), objstore.RetryConfig{})
		return memTarget(m, s)
	})
}
