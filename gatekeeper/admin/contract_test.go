package admin

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// contract is the OpenAPI document as somebody else would read it: as plain JSON
// with JSON schemas in it. It holds responses against it.
type contract struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	used     map[string]bool // "GET /v1/status 200"
}

func newContract(t testing.TB, document []byte) *contract {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	must(t, err)
	c := &contract{doc: v.(map[string]any), compiler: jsonschema.NewCompiler(), used: map[string]bool{}}
	c.compiler.AssertFormat()
	c.compiler.DefaultDraft(jsonschema.Draft2020) // OpenAPI 3.1's
	must(t, c.compiler.AddResource("openapi.json", v))
	return c
}

// operations lists "GET /v1/status" and so on.
func (c *contract) operations() (all []string) {
	for path, item := range c.doc["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(all)
	return all
}

// find returns the documented path that a request's path matches.
func (c *contract) find(r *http.Request) (path string, ok bool) {
	asked := strings.Split(r.URL.Path, "/")
	for _, op := range c.operations() {
		method, path, _ := strings.Cut(op, " ")
		parts := strings.Split(path, "/")
		if method == r.Method && slices.EqualFunc(parts, asked, func(p, a string) bool { return p == a || strings.HasPrefix(p, "{") }) {
			return path, true
		}
	}
	return "", false
}

// check holds a response against the document: its status, its type, its body.
func (c *contract) check(r *http.Request, resp *http.Response, body []byte) error {
	path, ok := c.find(r)
	if !ok {
		return fmt.Errorf("%s %s is not in the document", r.Method, r.URL.Path)
	}
	status := strconv.Itoa(resp.StatusCode)
	at := []string{"paths", path, strings.ToLower(r.Method), "responses", status}
	c.used[fmt.Sprintf("%s %s %s", r.Method, path, status)] = true
	if c.look(at) == nil {
		return fmt.Errorf("%s %s: status %s is not in the document", r.Method, path, status)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	if at = append(at, "content", kind, "schema"); c.look(at) == nil {
		return fmt.Errorf("%s %s: %s of status %s is not in the document", r.Method, path, kind, status)
	}
	if kind == backupType {
		return backup.Read(bytes.NewReader(body), nothing{})
	}
	if err := c.validate(pointer(at), body); err != nil {
		return fmt.Errorf("%s %s, status %s: %w\n%s", r.Method, r.URL, status, err, body)
	}
	return nil
}

// nothing takes a backup, and keeps nothing of it.
type nothing struct{}

func (nothing) Manifest(backup.Manifest) error                      { return nil }
func (nothing) Record(wal.Record) error                             { return nil }
func (nothing) Ledgers(backup.Blade, []control.LedgerContent) error { return nil }
func (nothing) Regions(backup.Blade, []byte) error                  { return nil }

// look follows keys into the document.
func (c *contract) look(keys []string) any {
	var v any = c.doc
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// validate holds JSON against a schema in the document.
func (c *contract) validate(pointer string, body []byte) error {
	s, err := c.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// pointer makes a JSON pointer of keys.
func pointer(keys []string) string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k))
	}
	return b.String()
}

// The contract notices what is wrong; else its silence would mean nothing.
func TestContract_Notices(t *testing.T) {
	s, err := New(Config{Backend: stopped{}})
	must(t, err)
	c := newContract(t, s.document)
	good := `{"items":[{"time":"2026-01-01T00:00:00Z","port":1,"node":"fd00::1","op":"read","pointer":"::1"}]}`
	for what, tc := range map[string]struct {
		path   string
		status int
		kind   string
		body   string
		ok     bool
	}{
		"right":                  {"/v1/denied", 200, "application/json", good, true},
		"an unknown path":        {"/v1/none", 200, "application/json", good, false},
		"an unknown status":      {"/v1/denied", 204, "application/json", good, false},
		"another type":           {"/v1/denied", 200, "text/plain", good, false},
		"no items":               {"/v1/denied", 200, "application/json", `{}`, false},
		"null for a list":        {"/v1/denied", 200, "application/json", `{"items":null}`, false},
		"a wrong address":        {"/v1/denied", 200, "application/json", strings.Replace(good, "fd00::1", "c1", 1), false},
		"a number for a text":    {"/v1/denied", 200, "application/json", strings.Replace(good, `"read"`, `4`, 1), false},
		"a wrong time":           {"/v1/denied", 200, "application/json", strings.Replace(good, "2026-01-01T", "", 1), false},
		"a required field less":  {"/v1/denied", 200, "application/json", strings.Replace(good, `"port":1,`, "", 1), false},
		"no JSON":                {"/v1/denied", 200, "application/json", `{`, false},
		"a problem for the list": {"/v1/denied", 503, "application/json", good, false},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://x"+tc.path, nil)
		must(t, err)
		err = c.check(r, &http.Response{StatusCode: tc.status, Header: http.Header{"Content-Type": {tc.kind}}}, []byte(tc.body))
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The document's own rules, as its linters have them: a server, and tags that are
// explained (by hand: npx @redocly/cli lint, npx @stoplight/spectral-cli lint).
func TestDocument(t *testing.T) {
	c := newContract(t, startSite(t, stopped{}).get("/v1/openapi.json"))
	if servers, _ := c.doc["servers"].([]any); len(servers) != 1 {
		t.Errorf("servers: %v", servers)
	}
	explained := map[string]bool{}
	for _, tag := range c.doc["tags"].([]any) {
		tag := tag.(map[string]any)
		explained[tag["name"].(string)] = tag["description"] != ""
	}
	used := map[string]bool{}
	for path, item := range c.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for _, tag := range op.(map[string]any)["tags"].([]any) {
				used[tag.(string)] = true
				if !explained[tag.(string)] {
					t.Errorf("%s %s: nothing says what %s is", method, path, tag)
				}
			}
		}
	}
	if len(used) != len(explained) {
		t.Errorf("tags %v are explained, %v used", explained, used)
	}
}
