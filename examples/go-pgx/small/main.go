package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"

	"github.com/jackc/pgx/v4"
)

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	for err == nil {
		err = next(ctx, db)
	}
	log.Fatal(err) // A lost connection or a lost lease, for example. Let a supervisor restart the program.
}

// next claims a task and handles it. Without a task, it waits for one.
func next(ctx context.Context, db *pgx.Conn) error {
	var id, token int64
	var payload []byte
	err := db.QueryRow(ctx, "SELECT id, token, payload FROM queue.claim()").Scan(&id, &token, &payload)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = db.Exec(ctx, "CALL queue.wait()") // Returns when there is a task, or after 30 seconds.
		return err
	}
	if err != nil {
		return err
	}
	if failure := send(ctx, db, id, token, payload); failure != nil {
		// Retried after a pause; after 20 attempts a dead letter.
		_, err = db.Exec(ctx, "SELECT queue.fail($1, $2, $3)", id, token, failure.Error())
	}
	return err
}

// send does the work. The work and its completion commit together, or not at all.
func send(ctx context.Context, db *pgx.Conn, id, token int64, payload []byte) error {
	var letter struct{ To *string }
	if err := json.Unmarshal(payload, &letter); err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // Does nothing after the commit.
	if _, err := tx.Exec(ctx, "INSERT INTO letters_sent (address) VALUES ($1)", letter.To); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT queue.complete($1, $2)", id, token); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
