package bench

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

func TestManual(t *testing.T) {
	var names []string
	if s := os.Getenv("SCEN"); s != "" {
		names = strings.Split(s, ",")
	}
	orgs := 100
	fmt.Sscan(os.Getenv("ORGS"), &orgs)
	err := Run(t.Context(), Options{URL: os.Getenv("BURL"), Events: 100000, FanOut: 20000, Organizations: orgs, Payload: 500, Span: 6 * time.Second, Rate: 200, Connections: 64,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}, names, func(r Result) error {
		b, _ := json.Marshal(r)
		fmt.Println(string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
