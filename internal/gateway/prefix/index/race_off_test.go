//go:build !race

package index

const histories = 120
