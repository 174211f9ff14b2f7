package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// object is an object of JSON.
type object = map[string]any

// offers are the services that a client may call, in order.
func (s *Server) offers(ctx context.Context, v *visit) ([]*offer, error) {
	names, err := s.catalog.list(ctx)
	if err != nil {
		return nil, err
	}
	var all []*offer
	for _, name := range names {
		if !v.mayCall(name) {
			continue
		}
		o, err := s.catalog.find(ctx, name)
		if err != nil {
			return nil, err
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all, nil
}

// openapi serves GET /openapi.json: the services that the client may call, as an OpenAPI 3.1 document.
func (s *Server) openapi(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
	defer cancel()
	all, err := s.offers(ctx, visitOf(r.Context()))
	if err != nil {
		failed(err).write(w)
		return
	}
	b, err := json.Marshal(document(all, s.config.Tokens != nil, s.config.Path))
	if err != nil {
		internalProblem(err.Error()).write(w)
		return
	}
	s.send(w, &durable.Outcome{Status: http.StatusOK, MediaType: jsonMedia, Body: b})
}

// document describes services; with tokens, each request needs one. Its paths are below a path.
func document(all []*offer, tokens bool, below string) object {
	d := describer{schemas: object{"Problem": problemSchema()}}
	paths := object{"/outcome/{key}": object{"get": outcomeOperation()}}
	for _, o := range all {
		for _, m := range o.methods {
			if thriftjson.Callable(m) == nil {
				paths["/call/"+url.PathEscape(o.name)+"/"+url.PathEscape(m.Name)] = object{"post": d.operation(o.name, m)}
			}
		}
	}
	components := object{"schemas": d.schemas, "parameters": headerParameters()}
	doc := object{
		"openapi": "3.1.0",
		"info":    object{"title": "Services of a Bifröst rack", "version": "1", "description": "Calls of the services of a rack. See docs/ingress.md."},
		"servers": []any{object{"url": below + "/"}},
		"paths":   paths, "components": components,
	}
	if tokens {
		components["securitySchemes"] = object{"token": object{"type": "http", "scheme": "bearer"}}
		doc["security"] = []any{object{"token": []any{}}}
	}
	return doc
}

// headerParameters are the headers of a call.
func headerParameters() object {
	header := func(name, description string, schema object) object {
		return object{"name": name, "in": "header", "description": description, "schema": schema}
	}
	return object{
		"key": header("Idempotency-Key", "The call runs once, however often it is sent with this key; a key is for one service, method and body.",
			object{"type": "string", "minLength": 1, "maxLength": maxKey}),
		"timeout": header("Request-Timeout", "How many seconds to wait for the answer.", object{"type": "number", "exclusiveMinimum": 0}),
		"prefer":  header("Prefer", "respond-async does not wait for the answer; wait=SECONDS waits for that of another request with the key.", object{"type": "string"}),
	}
}

func ref(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }

func content(media string, schema object) object {
	return object{media: object{"schema": schema}}
}

func problemAnswer(description string) object {
	return object{"description": description, "content": content(problemMedia, ref("schemas", "Problem"))}
}

func problemSchema() object {
	text := object{"type": "string"}
	return object{
		"type": "object", "description": "RFC 9457", "required": []string{"type", "title", "status"},
		"properties": object{
			"type": object{"type": "string", "format": "uri"}, "title": text, "status": object{"type": "integer"}, "detail": text, "code": text,
			"neverBegan": object{"type": "boolean", "description": "The call certainly did not run, and will not."},
			"exception": object{
				"type": "object", "description": "One that the IDL declares.", "required": []string{"name", "fields"},
				"properties": object{"name": text, "fields": object{"type": "object"}},
			},
			"errors": object{"type": "array", "items": object{
				"type": "object", "description": "Where the body does not fit: a JSON Pointer.", "required": []string{"pointer", "expected", "found"},
				"properties": object{"pointer": text, "expected": text, "found": text},
			}},
		},
	}
}

func outcomeOperation() object {
	return object{
		"operationId": "outcome", "summary": "The answer to the call with an idempotency key",
		"parameters": []any{object{"name": "key", "in": "path", "required": true, "schema": object{"type": "string"}}, ref("parameters", "prefer")},
		"responses": object{
			"200":     object{"description": "What the call has answered", "content": content(jsonMedia, object{})},
			"202":     object{"description": "The call runs"},
			"404":     problemAnswer("No call with this key is known"),
			"default": problemAnswer("What the call has failed with"),
		},
	}
}

// describer makes schemas of types, each named one once.
type describer struct{ schemas object }

func (d *describer) operation(service string, m *gen.Method) object {
	result, description := object{"type": "null"}, "Nothing"
	if m.Result != nil {
		result, description = d.schema(service, m.Result), "The result"
	}
	responses := object{
		"200":     object{"description": description, "content": content(jsonMedia, result)},
		"202":     object{"description": "Accepted: the answer will be at Location (Prefer: respond-async)"},
		"409":     problemAnswer("Another request with the Idempotency-Key is being served"),
		"422":     problemAnswer("The Idempotency-Key was used for another request"),
		"default": problemAnswer("Any other problem"),
	}
	if len(m.Throws) > 0 {
		var each []any
		for _, f := range m.Throws {
			each = append(each, object{"allOf": []any{ref("schemas", "Problem"), object{
				"type": "object", "required": []string{"exception"}, "properties": object{"exception": object{
					"type": "object", "properties": object{"name": object{"const": f.Type.Name}, "fields": d.schema(service, f.Type)},
				}},
			}}})
		}
		each = append(each, ref("schemas", "Problem"))
		responses["422"] = object{
			"description": "An exception that the IDL declares; or the Idempotency-Key was used for another request",
			"content":     content(problemMedia, object{"anyOf": each}),
		}
	}
	op := object{
		"operationId": service + "." + m.Name, "tags": []string{service},
		"parameters": []any{ref("parameters", "key"), ref("parameters", "timeout"), ref("parameters", "prefer")},
		"requestBody": object{
			"required": len(m.Arguments) > 0, "content": content(jsonMedia, d.fields(service, &gen.Type{Kind: gen.Struct, Fields: m.Arguments})),
		},
		"responses": responses,
	}
	if body, err := bodyOf(m); err == nil {
		op["requestBody"].(object)["content"].(object)[rawMedia] = object{}
		beside := slices.DeleteFunc(slices.Clone(m.Arguments), func(f gen.Field) bool { return f.ID == body.ID })
		op["parameters"] = append(op["parameters"].([]any), object{
			"name": "arguments", "in": "query", "description": "The other arguments, if the body is " + body.Name + " as it is.",
			"content": content(jsonMedia, d.fields(service, &gen.Type{Kind: gen.Struct, Fields: beside})),
		})
	}
	if m.ResultByReference && m.Result.Kind == gen.Binary {
		responses["200"].(object)["content"].(object)[rawMedia] = object{}
	}
	if summary, _, _ := strings.Cut(m.Doc, "\n"); summary != "" {
		op["summary"], op["description"] = summary, m.Doc
	}
	return op
}

// bounds are those of the whole numbers.
var bounds = map[gen.Kind][2]int64{
	gen.I8: {math.MinInt8, math.MaxInt8}, gen.I16: {math.MinInt16, math.MaxInt16}, gen.I32: {math.MinInt32, math.MaxInt32},
}

// schema is how a type looks in JSON (package thriftjson).
func (d *describer) schema(service string, t *gen.Type) object {
	switch t.Kind {
	case gen.Bool:
		return object{"type": "boolean"}
	case gen.I8, gen.I16, gen.I32:
		return object{"type": "integer", "minimum": bounds[t.Kind][0], "maximum": bounds[t.Kind][1]}
	case gen.I64:
		return object{"anyOf": []any{object{"type": "integer", "format": "int64"}, object{"type": "string", "pattern": "^-?[0-9]+$"}}}
	case gen.Double:
		return object{"anyOf": []any{object{"type": "number", "format": "double"}, object{"enum": []string{"NaN", "Infinity", "-Infinity"}}}}
	case gen.Binary:
		return object{"type": "string", "contentEncoding": "base64"}
	case gen.UUID:
		return object{"type": "string", "format": "uuid"}
	case gen.List:
		return object{"type": "array", "items": d.schema(service, t.Elem)}
	case gen.Set:
		return object{"type": "array", "items": d.schema(service, t.Elem), "uniqueItems": true}
	case gen.Map:
		if thriftjson.Named(t.Key) {
			return object{"type": "object", "additionalProperties": d.schema(service, t.Elem)}
		}
		return object{"type": "array", "items": object{
			"type": "array", "prefixItems": []any{d.schema(service, t.Key), d.schema(service, t.Elem)}, "minItems": 2, "maxItems": 2,
		}}
	case gen.Enum, gen.Struct, gen.Union, gen.Exception:
		return d.named(service, t)
	case gen.String:
	}
	return object{"type": "string"}
}

// named refers to the schema of a named type, which it makes if there is none.
func (d *describer) named(service string, t *gen.Type) object {
	name := componentName(service, t)
	if d.schemas[name] != nil {
		return ref("schemas", name)
	}
	if t.Kind == gen.Enum {
		names := []any{}
		for _, v := range t.Values {
			names = append(names, v.Name)
		}
		d.schemas[name] = object{"enum": names}
		return ref("schemas", name)
	}
	d.schemas[name] = object{} // a recursive type refers to itself
	schema := d.fields(service, t)
	if t.Doc != "" {
		schema["description"] = t.Doc
	}
	d.schemas[name] = schema
	return ref("schemas", name)
}

// fields is the schema of a type with fields.
func (d *describer) fields(service string, t *gen.Type) object {
	properties, required := object{}, []string{}
	for _, f := range t.Fields {
		properties[f.Name] = d.schema(service, f.Type)
		if !f.Optional {
			required = append(required, f.Name)
		}
	}
	schema := object{"type": "object", "properties": properties, "additionalProperties": false}
	switch {
	case t.Kind == gen.Union:
		schema["minProperties"], schema["maxProperties"] = 1, 1
	case len(required) > 0:
		schema["required"] = required
	}
	return schema
}

// componentName is a name of OpenAPI: letters, digits, points, hyphens, and underscores with which all else is written.
func componentName(service string, t *gen.Type) string {
	var b strings.Builder
	for _, c := range []byte(service) {
		if c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02X", c)
		}
	}
	for _, part := range []string{t.Unit, t.Name} {
		if part != "" {
			b.WriteString("." + part)
		}
	}
	return b.String()
}
