package p4rt

import (
	"testing"

	"google.golang.org/grpc/codes"
)

const exact1 = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } }
	action { action { action_id: 0x01000003 params { param_id: 1 value: "\x05" } params { param_id: 2 value: "\xaa\xbb" } } } }`

func TestSection9_1_TableEntry_InsertReadDelete(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(exact1))
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		if n := len(b.fakes.last(t).entries); n != 1 {
			t.Fatalf("%d entries in the data plane", n)
		}
		c.fails(codes.AlreadyExists, c.insert(exact1))
		c.must(c.del(exact1))
		c.expect(`table_entry { table_id: 0x02000001 }`)
		c.fails(codes.NotFound, c.del(exact1))
		c.fails(codes.NotFound, c.modify(exact1))
		if n := len(b.fakes.last(t).entries); n != 0 {
			t.Fatalf("%d entries in the data plane", n)
		}
	})
}
