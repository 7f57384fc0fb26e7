package ring

import "math"

// Parts of the range of a hash in [waits].
const (
	waitBits  = 10
	waitParts = 1 << waitBits
	waitUnit  = 1 << 24 // of an entry: 1.0
)

// waits has -ln(1 - i/waitParts) for each i: when the first strike of a clock that strikes once in a unit of
// time on the average comes, by how probable it is that it has come. Entries are rounded so
// coarsely that it does not matter how a processor rounds logarithms. The last one stands for infinity:
// the line to it has the right mean.
var waits = func() (t [waitParts + 1]uint64) {
	for i := range waitParts {
		t[i] = uint64(math.Ceil(-math.Log1p(-float64(i)/waitParts) * waitUnit))
	}
	t[waitParts] = t[waitParts-1] + 2*waitUnit
	return t
}()

// wait turns an even hash into a wait of exponential distribution, in 2^-58 of the mean, by
// straight lines between the entries of [waits]. It is monotonic.
func wait(hash uint64) uint64 {
	i, rest := hash>>(64-waitBits), hash<<waitBits>>(waitBits+16)
	return waits[i]<<34 + (waits[i+1]-waits[i])*rest>>4
}
