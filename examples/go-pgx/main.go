// A worker: claims letters, prints them page by page, and sends each exactly once.
//
//	DATABASE_URL=postgresql://localhost/shop go run main.go mailer-1
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

type task struct {
	id      int64
	token   int64
	payload []byte
}

type letter struct {
	To    *string
	Pages int
}

func handle(ctx context.Context, db *pgx.Conn, t task, stopping <-chan struct{}) error {
	work := letter{Pages: 1}
	if err := json.Unmarshal(t.payload, &work); err != nil {
		return err
	}
	for page := 1; page <= work.Pages; page++ {
		time.Sleep(20 * time.Millisecond) // The work, a piece at a time.
		var cancel bool
		extend := "SELECT cancel_requested FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))"
		if err := db.QueryRow(ctx, extend, t.id, t.token, page).Scan(&cancel); err != nil {
			return err
		}
		if cancel {
			_, err := db.Exec(ctx, "SELECT queue.confirm_cancel($1, $2)", t.id, t.token)
			return err
		}
		select {
		case <-stopping:
			_, err := db.Exec(ctx, "SELECT queue.release($1, $2)", t.id, t.token)
			return err
		default:
		}
	}
	// What the work writes commits together with the task, or not at all.
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO letters_sent (address) VALUES ($1)", work.To); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT queue.complete($1, $2)", t.id, t.token); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func run(ctx context.Context, name string) error {
	// The context is only checked between queries: canceling a query would close the connection.
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	for stop.Err() == nil {
		var t task
		claim := "SELECT id, token, payload FROM queue.claim(worker => $1)"
		err := db.QueryRow(ctx, claim, name).Scan(&t.id, &t.token, &t.payload)
		if errors.Is(err, pgx.ErrNoRows) {
			_, err = db.Exec(ctx, "CALL queue.wait(timeout => '1 second')")
		} else if err == nil {
			if err = handle(ctx, db, t, stop.Done()); err != nil {
				_, err = db.Exec(ctx, "SELECT queue.fail($1, $2, $3)", t.id, t.token, err.Error())
			}
			var refused *pgconn.PgError
			if errors.As(err, &refused) && (refused.Code == "QX001" || refused.Code == "QX003") {
				log.Printf("task %d: %v", t.id, err) // Another worker has the task, or has finished it.
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
