# A worker: claims letters, prints them page by page, and sends each exactly once.
#
#     DATABASE_URL=postgresql://localhost/shop ruby worker.rb mailer-1

require "json"
require "pg"

LOST = %w[QX001 QX003] # Another worker has the task, or has finished it.
$stopping = false
trap("TERM") { $stopping = true }

def handle(db, task)
  letter = JSON.parse(task["payload"])
  lease = task.values_at("id", "token")
  1.upto(letter.fetch("pages", 1)) do |page|
    sleep 0.02 # The work, a piece at a time.
    extend = "SELECT * FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))"
    if db.exec_params(extend, [*lease, page]).first["cancel_requested"] == "t"
      return db.exec_params("SELECT queue.confirm_cancel($1, $2)", lease)
    end
    return db.exec_params("SELECT queue.release($1, $2)", lease) if $stopping
  end
  # What the work writes commits together with the task, or not at all.
  db.transaction do
    db.exec_params("INSERT INTO letters_sent (address) VALUES ($1)", [letter["to"]])
    db.exec_params("SELECT queue.complete($1, $2)", lease)
  end
end

def report(db, task, error)
  db.exec_params("SELECT queue.fail($1, $2, $3)", [task["id"], task["token"], error.message])
rescue PG::Error => refused
  raise unless LOST.include?(refused.result&.error_field(PG::PG_DIAG_SQLSTATE))
  warn "task #{task["id"]}: #{refused.message}"
end

db = PG.connect(ENV.fetch("DATABASE_URL"))
until $stopping
  task = db.exec_params("SELECT * FROM queue.claim(worker => $1)", [ARGV.fetch(0)]).first
  unless task
    db.exec("CALL queue.wait(timeout => '1 second')")
    next
  end
  begin
    handle(db, task)
  rescue StandardError => error
    report(db, task, error)
  end
end
db.close
