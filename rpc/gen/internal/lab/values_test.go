package lab_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/shared"
)

// prints are many, each with a frame of 10 KiB.
func prints(n int) []*lab.Print {
	var list []*lab.Print
	for i := range n {
		plane := bytes.Repeat([]byte{byte(i)}, 10<<10)
		list = append(list, &lab.Print{
			Title: fmt.Sprint("print ", i%7), Colour: lab.Colour(1 + i%2),
			Frame: &shared.Frame{Width: int32(i), Planes: [][]byte{plane}},
		})
	}
	return list
}

// TestAnyValue: a map of lists of structs comes back, and can be read in place.
func TestAnyValue(t *testing.T) {
	everywhere(t, func(w *world) {
		album, err := w.client.Album(w.ctx, rpc.NewRef(printsType, prints(100)), rpc.NewRef(form.Set[[]lab.Colour](form.I32[lab.Colour]()), []lab.Colour{lab.Colour_RED}))
		w.must(err)
		entries, err := rpc.Entries(w.ctx, album)
		if err != nil || entries.Len() != 7 {
			t.Fatalf("%d titles, %v", entries.Len(), err)
		}
		place, ok, err := entries.Place(w.ctx, "print 3")
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		list, err := form.Elements(w.ctx, place, form.Struct(lab.NewPrint))
		w.must(err)
		if list.Len() != 7 { // 10, 24, 38, 52, 66, 80 and 94
			t.Errorf("%d red prints of a title", list.Len())
		}
		last, err := list.At(w.ctx, 6)
		w.must(err)
		if last.Frame.Width != 94 || last.Title != "print 3" {
			t.Errorf("the last is %d, %s", last.Frame.Width, last.Title)
		}
		at, err := list.Place(w.ctx, 0)
		w.must(err)
		fields, err := lab.PrintFieldsOf(w.ctx, at)
		w.must(err)
		if title, ok, err := fields.Title(w.ctx); title != "print 3" || !ok || err != nil {
			t.Errorf("the title of the first is %q, %t, %v", title, ok, err)
		}
		if _, ok, err := entries.Get(w.ctx, "nobody's"); ok || err != nil {
			t.Errorf("a title that is not there: %t, %v", ok, err)
		}
		if _, err := list.At(w.ctx, 7); !errors.Is(err, form.ErrRange) {
			t.Errorf("an element that is not there: %v", err)
		}
		whole, err := album.Take(w.ctx)
		if err != nil || len(whole) != 7 || len(whole["print 3"]) != 7 {
			t.Errorf("%d titles, %v", len(whole), err)
		}
		if _, err := list.At(w.ctx, 1); w.rack != nil && !errors.Is(err, rpc.ErrRefEnded) {
			t.Errorf("an element of a reference that has ended: %v", err)
		}
	})
}

// TestRefWriter: what is written as it comes is a reference like another; what is given up
// half-way leaves nothing behind.
func TestRefWriter(t *testing.T) {
	onRack(t, func(w *world) {
		ref := rpc.NewRef(printsType, nil)
		writer, err := ref.Writer(w.ctx, w.node)
		w.must(err)
		for _, p := range prints(200) { // the region grows three times
			w.must(form.Append(writer, form.Struct(lab.NewPrint), p))
		}
		if _, err := ref.Load(w.ctx); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("load of what is being written: %v", err)
		}
		w.must(writer.Close())
		all := rpc.NewRef(form.Set[[]lab.Colour](form.I32[lab.Colour]()), []lab.Colour{lab.Colour_RED, lab.Colour_GREEN})
		album, err := w.client.Album(w.ctx, ref, all)
		w.must(err)
		whole, err := album.Take(w.ctx)
		w.must(err)
		if n := len(whole["print 0"]); n != 29 {
			t.Errorf("%d of 29 prints of a title", n)
		}
		list, err := rpc.Elements(w.ctx, ref)
		w.must(err)
		if p, err := list.At(w.ctx, 199); err != nil || p.Frame.Width != 199 {
			t.Errorf("the last: %v, %v", p, err)
		}
		w.must(ref.Free(w.ctx))
		ref = rpc.NewRef(printsType, nil)
		writer, err = ref.Writer(w.ctx, w.node)
		w.must(err)
		for _, p := range prints(60) {
			w.must(form.Append(writer, form.Struct(lab.NewPrint), p))
		}
		w.must(ref.Free(w.ctx))
		if err := writer.Close(); !errors.Is(err, rpc.ErrRefEnded) {
			t.Errorf("a writer whose reference is freed: %v", err)
		}
		w.empty()
	})
}

// TestPartsOfPlain: bytes and numbers are read in place, too.
func TestPartsOfPlain(t *testing.T) {
	everywhere(t, func(w *world) {
		curve, err := w.client.NewCurve_(w.ctx, 20000)
		w.must(err)
		list, err := rpc.Elements(w.ctx, curve)
		w.must(err)
		if v, err := list.At(w.ctx, 12345); err != nil || v != 6172.5 || list.Len() != 20000 {
			t.Errorf("%v of %d, %v", v, list.Len(), err)
		}
		w.must(curve.Free(w.ctx))
		got, err := w.client.Develop(w.ctx, rpc.RefOf(film), 1)
		w.must(err)
		b := make([]byte, 5)
		if _, err := rpc.Elements(w.ctx, got); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("elements of a binary: %v", err)
		}
		place, err := got.Place(w.ctx)
		w.must(err)
		if err := place.Read(w.ctx, 22, b); err != nil || !bytes.Equal(b, inverted(film)[22:27]) {
			t.Errorf("%x, %v", b, err)
		}
		if err := place.Read(w.ctx, int64(len(film))-4, b); !errors.Is(err, form.ErrRange) {
			t.Error(err)
		}
		w.must(got.Free(w.ctx))
	})
}
