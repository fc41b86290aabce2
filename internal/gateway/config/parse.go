package config

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// MaxFileBytes is the largest configuration file. A thousand models with ten buckets of ten engines each fill half of it; reading
// more would only let a mistaken path cost memory.
const MaxFileBytes = 1 << 20

// maxDepth is how deep values may be nested. The schema is ten levels deep; a hundred leaves every mistake its own fault.
const maxDepth = 100

// Parse reads one YAML document. The Config is nil when any fault is an error; name is used in faults only.
func Parse(name string, data []byte) (*Config, Faults) {
	d := newDecoder(name)
	return d.config(d.parse(data))
}

// config builds and checks the configuration that root describes; a nil root means that the faults were found before.
func (d *decoder) config(root *node) (*Config, Faults) {
	c := new(Config)
	if root != nil {
		d.mark("", root)
		fields := c.fields()
		resetAll(fields)
		d.mapping("", root, fields, nil)
		d.compare(c)
		d.refuseNotBuilt(c)
		c.resolve()
	}
	if d.faults = d.faults.sorted(); len(d.faults.Errors()) > 0 {
		return nil, d.faults
	}
	return c, d.faults
}

// parse returns the root of the one document, or nil after a fault.
func (d *decoder) parse(data []byte) *node {
	if what, cure := checkBytes(data); what != "" {
		d.add("", nil, classValue, what, cure, false)
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		d.add("", nil, classValue, "cannot be read: "+err.Error(), "", false)
		return nil
	}
	var docs []*node
	for len(docs) < 2 {
		n := new(node)
		err := loader.Load(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.syntax(err)
			return nil
		}
		docs = append(docs, n)
	}
	if len(docs) == 0 || len(docs[0].Content) == 0 {
		d.add("", nil, classValue, "the file is empty", "write at least models and discovery", false)
		return nil
	}
	if len(docs) > 1 {
		d.add("", docs[1], classValue, "a second document begins here", "keep one document a file", false)
	}
	root := docs[0].Content[0]
	if root.Kind == scalarNode && root.ShortTag() == "!!null" {
		d.add("", nil, classValue, "the file is empty", "write at least models and discovery", false)
		return nil
	}
	return root
}

func checkBytes(data []byte) (what, cure string) {
	if len(data) > MaxFileBytes {
		return "the file has more than 1 MiB", "is it a configuration file?"
	}
	if !utf8.Valid(data) {
		line := 1
		for i := 0; i < len(data); {
			r, n := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			if r == '\n' {
				line++
			}
			i += n
		}
		return "the file is not UTF-8, first in line " + strconv.Itoa(line), "save it as UTF-8"
	}
	return "", ""
}

// syntax turns an error of the YAML library into a fault at its place.
func (d *decoder) syntax(err error) {
	place := new(node)
	what := err.Error()
	if e := new(yaml.LoadError); errors.As(err, &e) {
		place.Line, place.Column = e.Mark.Line, e.Mark.Column
		what = e.Message
		if e.ContextMsg != "" {
			what = e.ContextMsg + ": " + what
		}
	}
	what = strings.Join(strings.Fields(what), " ") // one line, whatever the library quotes
	d.add("", place, classValue, "not YAML: "+what, "check indentation, quotes and colons near here", false)
}
