package tracing_test

import (
	"net/http"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// partly is a collector that takes a batch but for so many spans.
func partly(rejected int64, why string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		text, err := proto.Marshal(&collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: rejected, ErrorMessage: why}})
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(text)
	}
}
