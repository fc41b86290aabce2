package config

import (
	"fmt"
	"slices"
	"strings"
)

// Reference writes docs/configuration.md from the schema and the flags.
func Reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	section(&b, "", "The file", new(Config).fields())
	for _, name := range policyNames {
		p := Policy{Name: name}
		if r := p.settings(); r != nil {
			section(&b, "policy", "Settings of the policy "+string(name), r.fields())
		}
	}
	b.WriteString("\n## Not built yet\n\nThe schema has them and their rules are checked, but this version refuses them by name:\n\n")
	for _, what := range notBuilt {
		fmt.Fprintf(&b, "- %s\n", what)
	}
	flagTables(&b)
	return b.String()
}

const referenceHead = `<!-- Generated from the schema by "go generate ./internal/gateway/config"; edits are lost. -->

# Configuration

` + "`perigee serve`" + ` is configured by flags, for one model, or by a YAML file (` + "`--config FILE`" + `), for several models and for buckets.
Both give the same configuration. ` + "`perigee check FILE`" + ` reports everything that is wrong with a file, without starting anything.

The file is one YAML document of at most 1 MiB, in UTF-8. Every key is known or refused; a key is written once; anchors, aliases and merge
keys are refused. A key without a value is refused: leave it out to get the default.

- A **duration** is text with a unit: ` + "`100ms`, `30s`, `10m`, `1h`" + `. A bare number is refused.
- A **size** is a whole number of bytes, or one with ` + "`KiB`, `MiB` or `GiB`" + `.
- A **policy** is a name, or a mapping of ` + "`name`" + ` and the settings of that policy.
- A **whole number** is written in decimal digits.

Complete files are in ` + "[examples](../examples)" + `.
`

// section writes one table a mapping, the mappings below it after it.
func section(b *strings.Builder, path, title string, fields []field) {
	fmt.Fprintf(b, "\n## %s\n\n", title)
	table(b, path, fields)
}

func table(b *strings.Builder, path string, fields []field) {
	b.WriteString("| key | value | default | range | meaning |\n|---|---|---|---|---|\n")
	for _, f := range fields {
		kind := f.val.kind()
		if f.unit != "" {
			kind += ", " + f.unit
		}
		def := "none"
		switch initial := f.val.initial(); {
		case f.required:
			def = "required"
		case initial != "":
			def = "`" + initial + "`"
		}
		doc := f.doc
		switch {
		case f.fixed && f.val.nested() != nil:
			doc += " Adding or removing it needs a restart."
		case f.fixed:
			doc += " Needs a restart."
		}
		if f.why != "" {
			doc += " Why this default: " + f.why + "."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", f.key, kind, def, f.val.limits(), doc)
	}
	for _, f := range fields {
		below := f.val.nested()
		if below == nil {
			continue
		}
		at := join(path, f.key)
		if strings.HasPrefix(f.val.kind(), "list") {
			at += "[]"
		}
		// A group is written the same way in three places and a group's admission in four; the first place has the tables.
		if strings.HasSuffix(at, ".pd.prefill") || strings.HasSuffix(at, ".pd.decode") || strings.HasSuffix(at, ".plain.admission") {
			continue
		}
		fmt.Fprintf(b, "\n### `%s`\n\n", at)
		table(b, at, below)
	}
}

func flagTables(b *strings.Builder) {
	b.WriteString("\n## Flags\n\n`perigee serve` takes sgl-router's flags with their names, and a few of its own. A flag that sets a key of the file follows that key's rules.\n")
	bs := new(Flags).bindings()
	var groups []string
	for _, f := range bs {
		if f.group != "" && !slices.Contains(groups, f.group) {
			groups = append(groups, f.group)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(b, "\n### %s\n\n| flag | key | meaning |\n|---|---|---|\n", g)
		for _, f := range bs {
			if f.group == g {
				fmt.Fprintf(b, "| `--%s` | %s | %s |\n", f.name, f.keyText(), strings.ReplaceAll(f.help, "|", `\|`))
			}
		}
	}
	b.WriteString("\n### Refused\n\nThese are known, so that they can be refused with what replaces them.\n\n| flag | instead |\n|---|---|\n")
	for _, f := range bs {
		if f.dropped != "" {
			fmt.Fprintf(b, "| `--%s` | %s |\n", f.name, f.dropped)
		}
	}
	for _, name := range []string{"fused_score", "score_policy", "power_of_n", "legacy_host_affinity"} {
		fmt.Fprintf(b, "| policy `%s` | %s |\n", name, droppedPolicies[name])
	}
	b.WriteString("| `--affinity-mode soft`, `--session-affinity-mode global-*`, `--filter prefix_cache` | the fault says what to do |\n")
}

// keyText names the key of the file that the flag sets.
func (b binding) keyText() string {
	switch {
	case b.path == "":
		return ""
	case b.policy != "":
		return fmt.Sprintf("`%s` of %s", b.path, b.policy)
	case strings.HasPrefix(b.path, "models."):
		return "`models[]." + strings.TrimPrefix(b.path, "models.") + "`"
	}
	return "`" + b.path + "`"
}
