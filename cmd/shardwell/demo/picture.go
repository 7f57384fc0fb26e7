package demo

import (
	"image"
	"image/color"
	"math"
	"math/rand/v2"
)

// Pictures have the size of those that image classifiers are trained on.
const (
	pictureWidth  = 512 // pixels
	pictureHeight = 384
)

var shapeNames = [...]string{"disc", "ring", "square", "diamond", "stripes", "waves"}

const classes = len(shapeNames)

// inside tells for each class whether a point lies in its shape of size 1.
var inside = [classes]func(x, y float64) bool{
	func(x, y float64) bool { return x*x+y*y < 1 },
	func(x, y float64) bool { r := x*x + y*y; return r < 1 && r > 0.5 },
	func(x, y float64) bool { return max(math.Abs(x), math.Abs(y)) < 0.85 },
	func(x, y float64) bool { return math.Abs(x)+math.Abs(y) < 1.1 },
	func(x, y float64) bool { return max(math.Abs(x), math.Abs(y)) < 1 && int(math.Floor(x*4))%2 == 0 },
	func(x, y float64) bool {
		return math.Abs(x) < 1 && math.Abs(math.Mod(y+0.3*math.Sin(x*6)+4, 0.5)) < 0.25 && math.Abs(y) < 1
	},
}

// draw makes a picture of a class: a gradient, some shapes, and the noise of a sensor.
func draw(rng *rand.Rand, class int) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, pictureWidth, pictureHeight))
	from, to := someColor(rng), someColor(rng)
	angle := rng.Float64() * 2 * math.Pi
	dx, dy := math.Cos(angle)/pictureWidth, math.Sin(angle)/pictureHeight
	type shape struct {
		x, y, size float64
		color      [3]float64
	}
	shapes := make([]shape, 1+rng.IntN(4))
	for i := range shapes {
		shapes[i] = shape{rng.Float64() * pictureWidth, rng.Float64() * pictureHeight, 30 + 90*rng.Float64(), someColor(rng)}
	}
	for y := range pictureHeight {
		for x := range pictureWidth {
			t := 0.5 + 0.5*(float64(x)*dx+float64(y)*dy)
			c := mix(from, to, t)
			for _, s := range shapes {
				if inside[class]((float64(x)-s.x)/s.size, (float64(y)-s.y)/s.size) {
					c = mix(c, s.color, 0.8)
				}
			}
			noise := rng.Uint32()
			img.SetRGBA(x, y, color.RGBA{grain(c[0], noise), grain(c[1], noise>>8), grain(c[2], noise>>16), 255})
		}
	}
	return img
}

func someColor(rng *rand.Rand) [3]float64 {
	return [3]float64{rng.Float64() * 255, rng.Float64() * 255, rng.Float64() * 255}
}

func mix(a, b [3]float64, t float64) (c [3]float64) {
	for i := range c {
		c[i] = a[i] + (b[i]-a[i])*t
	}
	return c
}

// grain adds noise of some levels to a channel.
func grain(v float64, noise uint32) uint8 {
	return uint8(max(0, min(255, v+float64(noise%32)-16)))
}
