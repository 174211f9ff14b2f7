package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manPage writes a command's manual page in roff, with the macros of man(7).
func manPage(cmd *cobra.Command) string {
	var p roff
	p.line(`.\" -*- coding: utf-8 -*-`)
	p.line(fmt.Sprintf(`.TH "%s" 1 "" "bifrost %s" "Bifröst"`, escape(strings.ToUpper(manName(cmd))), escape(versionString())))
	p.section("NAME")
	p.text(manName(cmd) + " - " + cmd.Short)
	p.section("SYNOPSIS")
	p.line(".B " + escape(cmd.UseLine()))
	p.section("DESCRIPTION")
	p.paragraphs(cmd.Long)
	p.flags("OPTIONS", cmd.NonInheritedFlags())
	p.flags("OPTIONS OF ALL SUCH COMMANDS", cmd.InheritedFlags())
	p.section("EXAMPLES")
	p.verbatim(strings.Split(cmd.Example, "\n"))
	p.section("SEE ALSO")
	p.line(related(cmd))
	return p.String()
}

// related are the pages of the command above and of those below.
func related(cmd *cobra.Command) string {
	var all []string
	refer := func(c *cobra.Command) { all = append(all, `\fB`+escape(manName(c))+`\fP(1)`) }
	if cmd.HasParent() {
		refer(cmd.Parent())
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			refer(sub)
		}
	}
	return strings.Join(all, ",\n")
}

// roff is a page that is being written.
type roff struct{ strings.Builder }

func (p *roff) line(s string) { p.WriteString(s + "\n") }

func (p *roff) section(title string) { p.line(".SH " + title) }

// text writes a line that is no request, whatever it begins with.
func (p *roff) text(s string) { p.line(escape(s)) }

// paragraphs writes text as it stands in helps: paragraphs, with empty lines between
// them, and lines that are indented, which stay as they are.
func (p *roff) paragraphs(s string) {
	for i, paragraph := range strings.Split(s, "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		lines := strings.Split(paragraph, "\n")
		if strings.HasPrefix(lines[0], " ") {
			p.verbatim(lines)
			continue
		}
		for _, l := range lines {
			p.text(l)
		}
	}
}

// verbatim writes lines without filling them.
func (p *roff) verbatim(lines []string) {
	p.line(".RS 2\n.nf")
	for _, l := range lines {
		p.text(strings.TrimPrefix(l, "  "))
	}
	p.line(".fi\n.RE")
}

// flags writes a section for flags, if there are any.
func (p *roff) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			value = " \\fI" + escape(value) + "\\fP"
		}
		p.line(".TP\n\\fB" + escape(name) + "\\fP" + value)
		if !strings.Contains(usage, "(default") && !zero(f.DefValue) {
			usage += " (default: " + f.DefValue + ")"
		}
		p.text(usage)
	})
}

// zero reports whether a flag's default is not worth a word.
func zero(def string) bool {
	return def == "" || def == "0" || def == "false" || def == "[]" || def == "0s"
}

// escape makes text safe for roff: no escapes, no requests, and dashes that can be
// searched for and copied.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
