package db

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrator moves a database's schema. Several at once take turns.
type Migrator struct {
	conn     *sql.DB
	provider *goose.Provider
}

// NewMigrator connects to url, which must not lead through a transaction pooler.
func NewMigrator(url string) (*Migrator, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_DIRECT_URL: %w", errConnectionString)
	}
	return newMigrator(cfg)
}

func newMigrator(cfg *pgx.ConnConfig) (*Migrator, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, fmt.Errorf("make migration lock: %w", err)
	}
	conn := stdlib.OpenDB(*cfg)
	provider, err := goose.NewProvider(goose.DialectPostgres, conn, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read migrations: %w", err), conn.Close())
	}
	return &Migrator{conn: conn, provider: provider}, nil
}

// Close ends the migrator's connections.
func (m *Migrator) Close() error { return m.conn.Close() }

// Up applies what is pending and returns how many files that were. A schema
// that is newer than this program is refused.
func (m *Migrator) Up(ctx context.Context) (int, error) {
	if err := m.refuseNewer(ctx); err != nil {
		return 0, err
	}
	applied, err := m.provider.Up(ctx)
	if err != nil {
		return 0, fmt.Errorf("migrate up: %w", err)
	}
	return len(applied), nil
}

// Down takes the newest file back and returns its number, or 0 when there is
// none.
func (m *Migrator) Down(ctx context.Context) (int64, error) {
	res, err := m.provider.Down(ctx)
	if errors.Is(err, goose.ErrNoNextVersion) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("migrate down: %w", err)
	}
	return res.Source.Version, nil
}

// MigrationStatus is one file and whether it is applied.
type MigrationStatus struct {
	Version int64  `json:"version"`
	File    string `json:"file"`
	Applied bool   `json:"applied"`
}

// Status lists all files in order.
func (m *Migrator) Status(ctx context.Context) ([]MigrationStatus, error) {
	files, err := m.provider.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("read migration status: %w", err)
	}
	list := make([]MigrationStatus, len(files))
	for i, f := range files {
		list[i] = MigrationStatus{Version: f.Source.Version, File: f.Source.Path, Applied: f.State == goose.StateApplied}
	}
	return list, nil
}

func (m *Migrator) refuseNewer(ctx context.Context) error {
	have, err := m.provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	return checkSchema(have, newestMigration(m.provider))
}

func checkSchema(have, know int64) error {
	if have > know {
		return fmt.Errorf("the database has schema %d, this program knows %d: run a newer deskcomm", have, know)
	}
	return nil
}

func newestMigration(p *goose.Provider) int64 {
	sources := p.ListSources()
	return sources[len(sources)-1].Version
}

const schemaVersionSQL = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`

// CheckSchema is nil when the schema is the one that this program works with.
func (d *DB) CheckSchema(ctx context.Context) error {
	var have int64
	if err := scan(ctx, d.pool, schemaVersionSQL, named{}, &have); err != nil {
		return wrap("read schema version", err)
	}
	know, err := knownSchema()
	if err != nil {
		return err
	}
	if have < know {
		return fmt.Errorf("the database has schema %d, this program needs %d: run deskcomm migrate up", have, know)
	}
	return checkSchema(have, know)
}

// knownSchema is the number of the newest embedded file.
func knownSchema() (int64, error) {
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	version, err := goose.NumericComponent(files[len(files)-1])
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	return version, nil
}

// MigrationFiles returns the text of all migrations, for telling one state of
// the schema from another.
func MigrationFiles() ([]byte, error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var all []byte
	for _, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read migrations: %w", err)
		}
		all = append(all, text...)
	}
	return all, nil
}
