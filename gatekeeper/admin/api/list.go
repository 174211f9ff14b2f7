package api

import (
	"cmp"
	"fmt"
	"strings"
)

// List is one page of a list.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one"`
	// Missing is told of regions and slots.
	Missing []string `json:"missing,omitempty" doc:"Who has not answered, so that the list is not complete: memory blades, whose regions are left out, and switch, which knows controllers, leases and slots"`
	// Total is told of lists whose items are all at hand.
	Total int `json:"total,omitempty" doc:"How many items all pages have, where that is known and limit was given"`
}

// Problem is what every error response carries (RFC 9457).
type Problem struct {
	Type   string    `json:"type" format:"uri-reference" doc:"about:blank: the status says it all" example:"about:blank"`
	Title  string    `json:"title" doc:"The status in words" example:"Not Found"`
	Status int       `json:"status" doc:"The HTTP status" example:"404"`
	Detail string    `json:"detail,omitempty" doc:"What is wrong, and with what" example:"there is no blade m9"`
	Errors []Mistake `json:"errors,omitempty" doc:"Every mistake in the request"`
}

// Mistake is one thing that is wrong with a request.
type Mistake struct {
	Message  string `json:"message"`
	Location string `json:"location,omitempty" doc:"Where, such as query.limit"`
}

// Error implements error: the detail and all mistakes, for people who do not know HTTP. The title,
// in HTTP's words, stands for a detail that is missing.
//
// Status tells programs which kind of error it is.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(cmp.Or(p.Detail, p.Title))
	for _, m := range p.Errors {
		where := m.Location
		for _, part := range []string{"query.", "path.", "body."} { // of the request: whoever reads this has given names
			where = strings.TrimPrefix(where, part)
		}
		fmt.Fprintf(&b, "; %s: %s", where, m.Message)
	}
	return b.String()
}
