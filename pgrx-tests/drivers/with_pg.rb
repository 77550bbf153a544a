# Makes the calls that it reads with pg, in the mode that its argument names (calls.py says how they are written).

require "pg"

mode = ARGV.fetch(0)
db = PG.connect(ENV.fetch("DATABASE_URL"))
$stdout.sync = true

def argument(text)
  value = text[2..]
  text.start_with?("a") ? PG::TextEncoder::Array.new.encode(value.split("\x1f")) : value
end

def tell(rows)
  puts ["ok", *rows.values.flatten.map { |value| "#{value.class}=#{value}" }].join("\t")
end

def tell_error(error)
  puts "error\t#{error.result.error_field(PG::PG_DIAG_SQLSTATE)}"
end

pipelined = lambda do |calls|
  db.enter_pipeline_mode
  calls.each { |statement, arguments| db.send_query_params(statement, arguments) }
  db.pipeline_sync
  calls.each do
    tell(db.get_result.check)
  rescue PG::Error => error
    tell_error(error)
  ensure
    db.get_result
  end
  db.get_result
  db.exit_pipeline_mode
end

prepared = {}
one = lambda do |statement, arguments|
  case mode
  when "simple" then tell(db.exec(statement))
  when "pooled" then tell(db.exec_params(statement, arguments))
  else
    name = prepared[statement] ||= "s#{prepared.size}".tap { |new| db.prepare(new, statement) }
    tell(db.exec_prepared(name, arguments))
  end
rescue PG::Error => error
  tell_error(error)
end

batch = []
$stdin.each_line(chomp: true) do |line|
  if line.empty?
    mode == "pipelined" ? pipelined.call(batch) : batch.each { |statement, arguments| one.call(statement, arguments) }
    batch = []
  else
    statement, *texts = line.split("\t")
    batch << [statement, texts.map { |text| argument(text) }]
  end
end
