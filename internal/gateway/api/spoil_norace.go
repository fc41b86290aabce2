//go:build !race

package api

const spoil = false
