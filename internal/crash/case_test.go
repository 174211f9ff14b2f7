package crash

import (
	"reflect"
	"testing"
	"time"
)

func TestParseCrashes(t *testing.T) {
	want := Crashes{
		{At: 57, Victim: "B", How: Kill},
		{At: 58, After: true, Victim: Gatekeeper, How: Restart, Back: 300 * time.Millisecond},
		{At: 0, After: true, Victim: "main0", How: Cut, Back: 1500 * time.Millisecond},
	}
	const s = "57-B:kill,58+gk:restart:300ms,0+main0:cut:1.5s"
	if got := want.String(); got != s {
		t.Errorf("printed as %s", got)
	}
	got, err := ParseCrashes(s)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("parsed %v, %v", got, err)
	}
	if got, err := ParseCrashes(""); err != nil || got != nil {
		t.Errorf("nothing is %v, %v", got, err)
	}
	for _, s := range []string{"5", "x-B:kill", "5-B", "5-:kill", "5-B:hit", "5-gk:kill", "5-B:restart", "5-m1:twin", "5-sw:kill", "5-log:restart", "5-s1:kill", "5-B:cut:-1s", "5-B:cut:x", "5-B:cut:1s:1s", ","} {
		if got, err := ParseCrashes(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestParseSetting(t *testing.T) {
	want := Setting{MTU: 1280, LogLimit: 65536, Sync: true, Age: 300000 * time.Hour, Jumps: true, Idle: time.Hour, Pairs: true, Long: true, ByHand: true, Disks: true, Room: 65536, Large: 1024, Throng: 9, Leases: 3}
	got, err := ParseSetting(want.String())
	if err != nil || got != want {
		t.Errorf("%s is read as %+v, %v", want, got, err)
	}
	for seed := range uint64(500) {
		s := DrawSetting(seed)
		if again, err := ParseSetting(s.String()); err != nil || again != s {
			t.Fatalf("%s is read as %s, %v", s, again, err)
		}
	}
	for _, s := range []string{"mtu", "mtu=x", "log=", "age=1", "idle", "room"} {
		if got, err := ParseSetting(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

func FuzzParseCrashes(f *testing.F) {
	f.Add("57-B:kill,58+gk:restart:300ms")
	f.Fuzz(func(t *testing.T, s string) {
		cs, err := ParseCrashes(s)
		if err != nil {
			return
		}
		if again, err := ParseCrashes(cs.String()); err != nil || !reflect.DeepEqual(again, cs) {
			t.Errorf("%q is %v, and that is %v, %v", s, cs, again, err)
		}
	})
}
