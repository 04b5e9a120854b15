// Deskcomm carries the events of a WhatsApp CRM: one binary over one Postgres.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/deskcomm/deskcomm/app"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal finds the default handling again and ends the process.
	context.AfterFunc(ctx, stop)
	os.Exit(app.Main(ctx, version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
