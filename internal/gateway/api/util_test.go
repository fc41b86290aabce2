package api

import (
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

var noQuery explain.Query

func itoa(n int) string { return strconv.Itoa(n) }
