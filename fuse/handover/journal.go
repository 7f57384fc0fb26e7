package handover

// LastBacking implements fuse.Journal.
func (a *Area) LastBacking() int32 { return int32(a.load32(offLastBacking)) }

// BackingOpened implements fuse.Journal.
func (a *Area) BackingOpened(id int32) { a.store32(offLastBacking, uint32(id)) }

// ClosingBacking implements fuse.Journal.
func (a *Area) ClosingBacking(id int32) { a.store32(offClosing, uint32(id)) }

// BackingClosing implements fuse.Journal.
func (a *Area) BackingClosing() int32 { return int32(a.load32(offClosing)) }

// Taken implements fuse.Journal. A request beyond those that can be counted is one that
// came for the first time.
func (a *Area) Taken(unique uint64) (times, blame int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, known := a.again[unique]
	if !known {
		if len(a.spare) == 0 {
			a.forgetUnseen()
		}
		n := len(a.spare)
		if n == 0 {
			return 1, 0
		}
		i, a.spare = a.spare[n-1], a.spare[:n-1]
		a.again[unique] = i
		a.store32(againAt(i)+8, 0)
		a.store32(againAt(i)+12, 0)
		a.store64(againAt(i), unique)
	}
	a.seen[unique] = true
	at := againAt(i)
	a.store32(at+8, a.load32(at+8)+1)
	return int(a.load32(at + 8)), int(a.load32(at + 12))
}

// Answered implements fuse.Journal.
func (a *Area) Answered(unique uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, known := a.again[unique]; known {
		a.release(unique, i)
	}
}

// release frees the slot of a request; mu is held.
func (a *Area) release(unique uint64, i uint32) {
	a.store64(againAt(i), 0)
	delete(a.again, unique)
	delete(a.seen, unique)
	a.spare = append(a.spare, i)
}

// forgetUnseen frees the slots of requests that predecessors knew and that did not come
// again: their callers were killed. mu is held.
func (a *Area) forgetUnseen() {
	for unique, i := range a.again {
		if !a.seen[unique] {
			a.release(unique, i)
		}
	}
}

// Dock implements fuse.Journal.
func (a *Area) Dock(unique uint64) { a.store64(offDock, unique) }

// Blame implements fuse.Journal.
func (a *Area) Blame(by int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, known := a.again[a.load64(offDock)]; known {
		at := againAt(i) + 12
		a.store32(at, a.load32(at)+uint32(by))
	}
}

// Unanswered implements fuse.Journal.
func (a *Area) Unanswered() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]uint64, 0, len(a.again))
	for unique := range a.again {
		all = append(all, unique)
	}
	return all
}
