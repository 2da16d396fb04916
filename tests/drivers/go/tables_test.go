package drivers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pgx prepares every statement, and takes binary results.
func TestTables(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	check(t, os.WriteFile(filepath.Join(folder, "people.csv"), []byte("name,age\nAda,36\nAlan,41\n"), 0o600))
	client, err := pgx.Connect(ctx, startTables(t, folder)+"?user=ada")
	check(t, err)
	defer func() { _ = client.Close(ctx) }()

	var name string
	var age int64
	for _, above := range []int{37, 40} {
		check(t, client.QueryRow(ctx, "SELECT name, age FROM people WHERE age > $1", above).Scan(&name, &age))
		if name != "Alan" || age != 41 {
			t.Fatalf("%s is %d", name, age)
		}
	}

	batch := &pgx.Batch{}
	for number := range 10 {
		batch.Queue("SELECT $1::bigint * 2", number)
	}
	results := client.SendBatch(ctx, batch)
	for number := range 10 {
		var doubled int64
		check(t, results.QueryRow().Scan(&doubled))
		if doubled != int64(2*number) {
			t.Fatalf("2 * %d is %d", number, doubled)
		}
	}
	check(t, results.Close())

	_, err = client.Exec(ctx, "SELECT * FROM missing")
	var failure *pgconn.PgError
	if !errors.As(err, &failure) || failure.Code != "42P01" {
		t.Fatalf("not the error of a missing table: %v", err)
	}
	transaction, err := client.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	check(t, err)
	check(t, transaction.QueryRow(ctx, "SELECT count(*) FROM people").Scan(&age))
	check(t, transaction.Commit(ctx))
}
