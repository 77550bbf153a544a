// Makes the calls that it reads with pgx, in the mode that its argument names (calls.py says how they are written).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

func argument(text string) interface{} {
	value := text[2:]
	switch text[0] {
	case 'i', 'b':
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			log.Fatal(err)
		}
		return number
	case 'a':
		array := &pgtype.JSONBArray{}
		if err := array.Set(strings.Split(value, "\x1f")); err != nil {
			log.Fatal(err)
		}
		return array
	}
	return value
}

func cell(value interface{}) string {
	if object, ok := value.(map[string]interface{}); ok {
		text, _ := json.Marshal(object)
		return "map=" + string(text)
	}
	return fmt.Sprintf("%T=%v", value, value)
}

func tell(rows pgx.Rows, err error) {
	cells := []string{"ok"}
	if err == nil {
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				log.Fatal(err)
			}
			for _, value := range values {
				cells = append(cells, cell(value))
			}
		}
		err = rows.Err()
	}
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		cells = []string{"error", failure.Code}
	} else if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(cells, "\t"))
}

func main() {
	ctx, mode := context.Background(), os.Args[1]
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	// Through PgBouncer, whose server connections do not know each other's statements, none is prepared.
	config.PreferSimpleProtocol = mode == "simple" || mode == "pooled"
	db, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	var calls [][]string
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() != "" {
			calls = append(calls, strings.Split(lines.Text(), "\t"))
			continue
		}
		batch := &pgx.Batch{}
		for _, call := range calls {
			var arguments []interface{}
			for _, text := range call[1:] {
				arguments = append(arguments, argument(text))
			}
			if mode == "pipelined" {
				batch.Queue(call[0], arguments...)
			} else {
				tell(db.Query(ctx, call[0], arguments...))
			}
		}
		if mode == "pipelined" {
			results := db.SendBatch(ctx, batch)
			for range calls {
				tell(results.Query())
			}
			results.Close()
		}
		calls = nil
	}
}
