package e2e

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"slices"
	"testing"
)

// fewerColours makes a picture of a page small: a page has few colours, and the
// shades at the edges of letters need not all be distinguished.
func fewerColours(t *testing.T, src []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(src))
	if err != nil {
		t.Fatal(err)
	}
	size := from.Bounds()
	rough := func(c color.Color) color.NRGBA {
		r, g, b, _ := c.RGBA()
		return color.NRGBA{uint8(r>>8) &^ 7, uint8(g>>8) &^ 7, uint8(b>>8) &^ 7, 255}
	}
	type shade struct {
		n    int
		true color.Color
	}
	count := map[color.NRGBA]*shade{}
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			c := from.At(x, y)
			if s := count[rough(c)]; s != nil {
				s.n++
			} else {
				count[rough(c)] = &shade{1, c}
			}
		}
	}
	var shades []*shade
	for _, s := range count {
		shades = append(shades, s)
	}
	slices.SortFunc(shades, func(a, b *shade) int { return cmp.Compare(b.n, a.n) })
	var palette color.Palette
	for _, s := range shades[:min(len(shades), 64)] {
		palette = append(palette, s.true)
	}
	to := image.NewPaletted(size, palette)
	near := map[color.NRGBA]uint8{}
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			c := from.At(x, y)
			i, ok := near[rough(c)]
			if !ok {
				i = uint8(palette.Index(c))
				near[rough(c)] = i
			}
			to.SetColorIndex(x, y, i)
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
