//go:build race

package core

const histories = 300
