package control

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A part says what it speaks without being told to, and refuses another protocol with both named.
func TestRelease(t *testing.T) {
	for text, want := range map[string]string{
		`{"speaks":{"protocol":99,"build":"v9.0.0"}}`: "blade b speaks protocol 99 (build v9.0.0), this Gatekeeper protocol " + strconv.Itoa(Protocol),
		`{}`: "blade b speaks protocol 0 (build an older one), this Gatekeeper protocol " + strconv.Itoa(Protocol),
	} {
		var h Hello
		if err := json.Unmarshal([]byte(text), &h); err != nil {
			t.Fatal(err)
		}
		err := h.Speaks.Check("hello", "blade b", "this Gatekeeper")
		if fault.CodeOf(err) != fault.BadRequest || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "install the same release") {
			t.Errorf("%s: %v", text, err)
		}
	}
	b, err := json.Marshal(Hello{Blade: "b"})
	if err != nil {
		t.Fatal(err)
	}
	var h Hello
	if err := json.Unmarshal(b, &h); err != nil || h.Speaks != ThisRelease() {
		t.Errorf("%s became %+v, %v", b, h.Speaks, err)
	}
	if err := h.Speaks.Check("hello", "blade b", "this Gatekeeper"); err != nil {
		t.Errorf("its own: %v", err)
	}
}
