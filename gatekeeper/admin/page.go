package admin

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// pagePath is where the page's files lie; the page itself is at /.
const pagePath = "/page/"

// pagePolicy lets the page use its own files and the API, and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// registerPage serves the page and its files, whose names are fixed.
func registerPage(mux *http.ServeMux) {
	files := http.FileServerFS(pageFiles)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		pageHeaders(w)
		http.ServeFileFS(w, r, pageFiles, "page/index.html")
	})
	for _, e := range pageEntries() {
		mux.HandleFunc("GET "+pagePath+e, func(w http.ResponseWriter, r *http.Request) {
			pageHeaders(w)
			files.ServeHTTP(w, r)
		})
	}
}

func pageHeaders(w http.ResponseWriter) {
	w.Header().Set("Content-Security-Policy", pagePolicy)
}

// pageEntries lists the page's files, the page itself excepted.
func pageEntries() (names []string) {
	entries, err := pageFiles.ReadDir("page")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		if e.Name() != "index.html" {
			names = append(names, e.Name())
		}
	}
	return names
}
