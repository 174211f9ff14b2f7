package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
)

func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	bifrost := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := newTokenCmd()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append(args, "--admin-tokens", file))
		err := cmd.Execute()
		return out.String(), err
	}
	token, err := bifrost("add", "prometheus", "--role", "metrics")
	if err != nil || admin.CheckToken(strings.TrimSpace(token)) != nil {
		t.Fatalf("%q, %v", token, err)
	}
	if _, err := bifrost("add", "prometheus"); err == nil || !strings.Contains(err.Error(), "revoke it first") {
		t.Errorf("a second one of the name: %v", err)
	}
	if _, err := bifrost("add", "x", "--role", "king"); err == nil || !strings.Contains(err.Error(), "want metrics, read") {
		t.Errorf("an unknown role: %v", err)
	}
	if out, err := bifrost("list"); err != nil || !strings.Contains(out, "prometheus  metrics") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := bifrost("revoke", "nobody"); err == nil {
		t.Error("an unknown name is revoked")
	}
	if _, err := bifrost("revoke", "prometheus"); err != nil {
		t.Error(err)
	}
	if all, err := admin.ReadGrants(file); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}
