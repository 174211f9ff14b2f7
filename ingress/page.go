package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// pageView is what the page shows.
type pageView struct {
	Path     string // the ingress' own
	Services []serviceView
	Called   *calledView // the call that was made from the page, nil if none was
}

type serviceView struct {
	Name, Problem string
	Methods       []methodView
}

type methodView struct {
	Service, Name, Doc, Problem, Sample string
}

type calledView struct {
	Service, Method, Key, Sent, Answer string
	Status                             int
	Title                              string
}

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Services of the rack</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
textarea, input { font: 14px/1.4 ui-monospace, monospace; width: 100%; box-sizing: border-box }
pre { background: #f2f2f2; padding: .5rem; overflow: auto }
details { border-top: 1px solid #ccc; padding: .5rem 0 }
label { display: block; margin: .5rem 0 }
</style></head><body>
<h1>Services of the rack</h1>
<p><a href="{{.Path}}/openapi.json">OpenAPI document</a></p>
{{with .Called}}<section aria-label="Answer"><h2>{{.Service}}.{{.Method}}: {{.Status}} {{.Title}}</h2>
{{if .Key}}<p>Idempotency-Key: <code>{{.Key}}</code></p>{{end}}<pre>{{.Sent}}</pre><pre>{{.Answer}}</pre></section>{{end}}
{{range .Services}}<h2>{{.Name}}</h2>
{{if .Problem}}<p>{{.Problem}}</p>{{end}}
{{range .Methods}}<details><summary>{{.Name}}</summary>
{{if .Doc}}<p>{{.Doc}}</p>{{end}}
{{if .Problem}}<p>Cannot be called from here: {{.Problem}}</p>{{else}}
<form method="post" action="{{$.Path}}/form/{{.Service}}/{{.Name}}">
<label>Arguments <textarea name="body" rows="6" spellcheck="false">{{.Sample}}</textarea></label>
<label>Idempotency-Key, if it is to run once however often it is sent <input name="key" autocomplete="off"></label>
<button>Call {{.Name}}</button></form>{{end}}</details>{{end}}
{{else}}<p>No service is there.</p>{{end}}
</body></html>
`))

// index serves GET /.
func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
	defer cancel()
	s.show(ctx, w, visitOf(r.Context()), nil)
}

// show sends the page.
func (s *Server) show(ctx context.Context, w http.ResponseWriter, v *visit, called *calledView) {
	all, err := s.offers(ctx, v)
	if err != nil {
		failed(err).write(w)
		return
	}
	view := pageView{Path: s.config.Path, Called: called}
	for _, o := range all {
		service := serviceView{Name: o.name, Problem: o.problem}
		for _, m := range o.methods {
			method := methodView{Service: o.name, Name: m.Name, Doc: m.Doc}
			if err := thriftjson.Callable(m); err != nil {
				method.Problem = err.Error()
			} else {
				method.Sample = sample(&gen.Type{Kind: gen.Struct, Fields: m.Arguments}, 0)
			}
			service.Methods = append(service.Methods, method)
		}
		view.Services = append(view.Services, service)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, view); err != nil {
		internalProblem(err.Error()).write(w)
		return
	}
	s.send(w, &durable.Outcome{Status: http.StatusOK, MediaType: "text/html; charset=utf-8", Body: b.Bytes()})
}

// form serves POST /form/SERVICE/METHOD: a call from the page, whose answer the page shows.
func (s *Server) form(w http.ResponseWriter, r *http.Request) {
	a := &attempt{visit: visitOf(r.Context()), service: r.PathValue("service"), method: r.PathValue("method"), timeout: s.config.Timeout}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.config.BodyTimeout)) // a recorder of tests has none
	r.Body = http.MaxBytesReader(w, r.Body, 3*int64(s.config.MaxBody)+maxHeader)            // as a form has it, a byte may take three
	var got capture
	if refused := s.fromForm(r, a); refused != nil {
		refused.write(&got)
	} else {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		s.run(r.Context(), &got, a)
	}
	s.show(r.Context(), w, a.visit, &calledView{
		Service: a.service, Method: a.method, Key: a.key, Sent: string(a.body), Answer: got.body.String(), Status: got.status, Title: http.StatusText(got.status),
	})
}

// fromForm reads what the page sends.
func (s *Server) fromForm(r *http.Request, a *attempt) *problem {
	if !a.visit.mayCall(a.service) {
		return neverBegan(refusal(http.StatusForbidden, "forbidden", fmt.Sprintf("this token may not call service %q", a.service)))
	}
	if err := r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return neverBegan(refusal(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the form has more than %d bytes", large.Limit)))
		}
		return neverBegan(refusal(http.StatusBadRequest, "cut-short", err.Error()))
	}
	a.body = []byte(r.PostForm.Get("body"))
	if len(a.body) > s.config.MaxBody {
		return neverBegan(refusal(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the body has more than %d bytes", s.config.MaxBody)))
	}
	if a.key = strings.TrimSpace(r.PostForm.Get("key")); a.key == "" {
		return nil
	}
	if err := checkKey(a.key); err != nil {
		return neverBegan(refusal(http.StatusBadRequest, "bad-key", err.Error()))
	}
	return nil
}

// capture is a ResponseWriter that keeps what is written.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header is part of http.ResponseWriter.
func (c *capture) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

// WriteHeader keeps the status.
func (c *capture) WriteHeader(status int) { c.status = status }

// Write keeps the body.
func (c *capture) Write(b []byte) (int, error) { return c.body.Write(b) }

// mostSample is how deep a sample goes.
const mostSample = 4

// sample is a value of a type, to be filled in.
func sample(t *gen.Type, deep int) string {
	indent := "\n" + strings.Repeat("  ", deep)
	switch t.Kind {
	case gen.Bool:
		return "false"
	case gen.I8, gen.I16, gen.I32, gen.I64, gen.Double:
		return "0"
	case gen.UUID:
		return `"00000000-0000-0000-0000-000000000000"`
	case gen.Enum:
		if len(t.Values) > 0 {
			return `"` + t.Values[0].Name + `"`
		}
	case gen.List, gen.Set:
		if deep >= mostSample {
			return "[]"
		}
		return "[" + sample(t.Elem, deep+1) + "]"
	case gen.Map:
		if thriftjson.Named(t.Key) {
			return "{}"
		}
		return "[]"
	case gen.Struct, gen.Union, gen.Exception:
		var members []string
		for _, f := range t.Fields {
			if f.Optional || deep >= mostSample {
				continue
			}
			members = append(members, fmt.Sprintf("%s  %q: %s", indent, f.Name, sample(f.Type, deep+1)))
			if t.Kind == gen.Union {
				break
			}
		}
		if len(members) == 0 {
			return "{}"
		}
		return "{" + strings.Join(members, ",") + indent + "}"
	case gen.Binary, gen.String:
	}
	return `""`
}
