package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// CheckCapture is what a measurement of the capture makes of the events that it
// has emitted.
func CheckCapture(ctx context.Context, c *pgx.Conn, without, with []uuid.UUID) error {
	return checkCapture(ctx, c, CaptureCost{Without: CaptureArm{events: without}, With: CaptureArm{events: with}})
}

// WithoutOutbox is the other arm's emit_event.
func WithoutOutbox(source string) (string, error) { return withoutOutbox(source) }

// CheckScratch refuses what is not the scratch database of that name.
func CheckScratch(ctx context.Context, c *pgx.Conn, name string) error {
	return checkScratch(ctx, c, name)
}

// GroupWaiting counts who waits for a shared commit that has not begun.
func GroupWaiting(d *DB) int {
	d.group.mu.Lock()
	defer d.group.mu.Unlock()
	return len(d.group.queue)
}
