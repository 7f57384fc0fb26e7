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

// inside tells for each class whether a point of the square from -1 to 1 lies in its shape.
var inside = [classes]func(x, y float64) bool{
	func(x, y float64) bool { return x*x+y*y < 1 },
	func(x, y float64) bool { r := x*x + y*y; return r < 1 && r > 0.5 },
	func(x, y float64) bool { return max(math.Abs(x), math.Abs(y)) < 0.85 },
	func(x, y float64) bool { return math.Abs(x)+math.Abs(y) < 1 },
	func(x, _ float64) bool { return int(math.Floor(x*4))%2 == 0 },
	func(x, y float64) bool { return math.Mod(y+0.2*math.Sin(x*6)+4, 0.5) < 0.25 },
}

// draw makes a picture of a class: a gradient, some shapes, and the noise of a sensor.
func draw(rng *rand.Rand, class int) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, pictureWidth, pictureHeight))
	gradient(img, someColor(rng), someColor(rng), rng.IntN(2) == 0)
	for range 1 + rng.IntN(4) {
		center := image.Pt(rng.IntN(pictureWidth), rng.IntN(pictureHeight))
		shape(img, class, center, 30+rng.IntN(90), someColor(rng))
	}
	grain(img, rng)
	return img
}

func someColor(rng *rand.Rand) color.RGBA {
	n := rng.Uint32()
	return color.RGBA{uint8(n), uint8(n >> 8), uint8(n >> 16), 255}
}

// gradient fills a picture from one colour to another, across or down.
func gradient(img *image.RGBA, from, to color.RGBA, across bool) {
	for y := range pictureHeight {
		for x := range pictureWidth {
			t, of := y, pictureHeight
			if across {
				t, of = x, pictureWidth
			}
			mix := func(a, b uint8) uint8 { return uint8((int(a)*(of-t) + int(b)*t) / of) }
			img.SetRGBA(x, y, color.RGBA{mix(from.R, to.R), mix(from.G, to.G), mix(from.B, to.B), 255})
		}
	}
}

// shape draws the shape of a class within size pixels of its center.
func shape(img *image.RGBA, class int, center image.Point, size int, c color.RGBA) {
	box := image.Rect(center.X-size, center.Y-size, center.X+size, center.Y+size).Intersect(img.Rect)
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			if inside[class](float64(x-center.X)/float64(size), float64(y-center.Y)/float64(size)) {
				img.SetRGBA(x, y, c)
			}
		}
	}
}

// grain adds noise of some levels to each channel.
func grain(img *image.RGBA, rng *rand.Rand) {
	var noise uint64
	for i, v := range img.Pix {
		if i%8 == 0 {
			noise = rng.Uint64()
		}
		if i%4 != 3 { // opaque stays
			img.Pix[i] = uint8(max(0, min(255, int(v)+int(noise%32)-16)))
		}
		noise >>= 8
	}
}
