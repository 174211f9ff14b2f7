package p4rtclient

import "testing"

// TestGroups: multicast groups are written, read back, changed and deleted like entries.
func TestGroups(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		read := func(want ...Entry) {
			t.Helper()
			got, err := c.Groups(b.ctx)
			if err != nil || len(got) != len(want) {
				t.Fatalf("groups %v, %v, want %v", got, err, want)
			}
			for i := range want {
				if got[i].Key() != want[i].Key() || !got[i].Equal(&want[i]) {
					t.Errorf("group %v, want %v", got[i], want[i])
				}
			}
		}
		write := func(op Op, e Entry) error { return c.Write(b.ctx, []Update{{op, e}}) }
		read()
		two := Group(7, Replica{Port: 3, ID: 4}, Replica{Port: 2, ID: 3})
		if same := Group(7, Replica{Port: 2, ID: 3}, Replica{Port: 3, ID: 4}); !two.Equal(&same) {
			t.Errorf("the order of replicas counts: %v, %v", two, same)
		}
		if err := write(Insert, two); err != nil {
			t.Fatal(err)
		}
		read(two)
		if err := write(Insert, two); err == nil {
			t.Error("a group that is there was inserted")
		}
		one := Group(7, Replica{Port: 5, ID: 6})
		if err := write(Modify, one); err != nil {
			t.Fatal(err)
		}
		read(one)
		if err := write(Delete, Group(7)); err != nil {
			t.Fatal(err)
		}
		read()
		if err := write(Delete, Group(7)); err == nil {
			t.Error("a group that is not there was deleted")
		}
		bad := two
		bad.Params = bad.Params[:3]
		if err := write(Insert, bad); err == nil {
			t.Error("half a replica was inserted")
		}
	})
}
