// Package config is the gateway's configuration: one strict schema, written as a YAML file or as flags.
//
// It promises:
//
//   - One schema. Every key's meaning, unit, default, reason and range stand in the fields methods of this package and nowhere
//     else: defaults are applied, values are checked and docs/configuration.md is written from them.
//   - One result. Flags become the same tree of nodes that a file becomes, so both give the same Config by construction.
//   - All faults at once, each with its place (file:line:column, or the flag), what is wrong, and what cures it.
//   - Nothing accepted and ignored. An unknown key, a setting of a policy that is not chosen, a budget that no group would
//     check: each is a fault. What this version cannot do yet is refused by name (see notBuilt).
//   - Bounded work on any input: files over 1 MiB, anchors and aliases are refused before anything is built from them.
//
// The Config that Parse and Flags.Config return is complete: defaults are filled in and each group carries its own policy and
// admission. It is plain data; share it freely as long as nobody writes to it.
package config

//go:generate go run ./gendoc ../../../docs/configuration.md
