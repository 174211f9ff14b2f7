package datapath

import "testing"

// TestBlocks: a value of a range is in one of its blocks, one that is not is in one at most, and ranges that do not overlap share none.
func TestBlocks(t *testing.T) {
	const most = 70
	for low := range uint64(most) {
		for high := low; high < most; high++ {
			blocks := Blocks(low, high)
			if len(blocks) > 2 {
				t.Fatalf("%d blocks", len(blocks))
			}
			for v := range uint64(2 * most) {
				in := 0
				for _, b := range blocks {
					if v&b.Mask == b.Value {
						in++
					}
				}
				if in > 1 || v >= low && v <= high && in != 1 {
					t.Fatalf("%d to %d: %d is in %d blocks", low, high, v, in)
				}
			}
			for next := high + 1; next < most; next++ {
				for _, a := range blocks {
					for _, b := range Blocks(high+1, next) {
						if a == b {
							t.Fatalf("%d to %d and %d to %d share %v", low, high, high+1, next, a)
						}
					}
				}
			}
		}
	}
	if b := Blocks(0, ^uint64(0)); len(b) != 1 || b[0].Mask != 0 {
		t.Errorf("all values: %v", b)
	}
}
