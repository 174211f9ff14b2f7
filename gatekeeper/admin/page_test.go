package admin

import (
	"math"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const svgNamespace = "http://www.w3.org/2000/svg"

var elsewhere = regexp.MustCompile(`\b(https?|wss?):/?/?[a-z0-9]|["'(]//`)

// The page can use nothing but its own files and the API.
func TestPage_Policy(t *testing.T) {
	s := startSite(t, stopped{})
	resp, body := s.Do(s.Request(http.MethodGet, "/"))
	policy := resp.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q lacks %q", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	if elsewhere.Match(body) {
		t.Error("the page names something elsewhere")
	}
	entries, err := os.ReadDir("page")
	must(t, err)
	for _, e := range entries {
		if e.Name() == "index.html" {
			continue
		}
		resp, body := s.Do(s.Request(http.MethodGet, "/page/"+e.Name()))
		if resp.StatusCode != http.StatusOK || len(body) == 0 {
			t.Errorf("%s: %s", e.Name(), resp.Status)
		}
		if text := strings.ReplaceAll(string(body), svgNamespace, ""); elsewhere.MatchString(text) || strings.Contains(text, "innerHTML") {
			t.Errorf("%s reaches elsewhere, or makes HTML of text", e.Name())
		}
	}
}

// Text can be read on its background, in both schemes (WCAG AA: 4.5 to 1).
func TestPage_Contrast(t *testing.T) {
	css, err := os.ReadFile("page/style.css")
	must(t, err)
	schemes := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(string(css), -1)
	if len(schemes) != 2 {
		t.Fatalf("%d schemes", len(schemes))
	}
	for i, scheme := range schemes {
		colour := map[string][3]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(scheme[1], -1) {
			n, err := strconv.ParseUint(m[2], 16, 32)
			must(t, err)
			colour[m[1]] = [3]float64{float64(n >> 16), float64(n >> 8 & 255), float64(n & 255)}
		}
		for _, pair := range [][2]string{
			{"ink", "card"}, {"ink", "paper"}, {"ink", "soft"}, {"quiet", "card"}, {"quiet", "paper"}, {"quiet", "soft"},
			{"accent", "card"}, {"accent", "accent-soft"}, {"bad", "card"}, {"bad", "bad-soft"}, {"good", "card"}, {"waiting", "card"},
			{"waiting", "waiting-soft"}, {"running", "running-soft"}, {"replying", "replying-soft"},
		} {
			a, b := luminance(colour[pair[0]]), luminance(colour[pair[1]])
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
				t.Errorf("scheme %d: %s on %s has a contrast of %.2f", i, pair[0], pair[1], ratio)
			}
		}
	}
}

// luminance is a colour's relative luminance, as WCAG defines it.
func luminance(c [3]float64) (l float64) {
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v := c[i] / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		l += weight * v
	}
	return l
}
