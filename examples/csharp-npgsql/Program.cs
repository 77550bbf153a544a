// A worker: claims letters, prints them page by page, and sends each exactly once.
//
//     DATABASE_URL='Host=localhost;Database=shop;Username=me' dotnet run mailer-1

using System.Runtime.InteropServices;
using System.Text.Json;
using Npgsql;

var stopping = false;
using var signal = PosixSignalRegistration.Create(PosixSignal.SIGTERM, context =>
{
    context.Cancel = true; // Not at once.
    stopping = true;
});

await using var db = new NpgsqlConnection(Environment.GetEnvironmentVariable("DATABASE_URL"));
await db.OpenAsync();

NpgsqlCommand Sql(string statement, params object?[] arguments)
{
    var command = new NpgsqlCommand(statement, db);
    foreach (var argument in arguments)
        command.Parameters.Add(new NpgsqlParameter { Value = argument ?? DBNull.Value });
    return command;
}

async Task<(long Id, long Token, string Payload)?> Claim(string name)
{
    await using var command = Sql("SELECT id, token, payload::text FROM queue.claim(worker => $1)", name);
    await using var row = await command.ExecuteReaderAsync();
    return await row.ReadAsync() ? (row.GetInt64(0), row.GetInt64(1), row.GetString(2)) : null;
}

async Task Handle(long id, long token, string payload)
{
    using var letter = JsonDocument.Parse(payload);
    var pages = letter.RootElement.TryGetProperty("pages", out var number) ? number.GetInt32() : 1;
    for (var page = 1; page <= pages; page++)
    {
        await Task.Delay(20); // The work, a piece at a time.
        await using var extend = Sql("SELECT cancel_requested FROM queue.extend($1, $2, "
            + "progress => jsonb_build_object('page', $3::int))", id, token, page);
        if ((bool)(await extend.ExecuteScalarAsync())!)
        {
            await using var cancelled = Sql("SELECT queue.confirm_cancel($1, $2)", id, token);
            await cancelled.ExecuteNonQueryAsync();
            return;
        }
        if (stopping)
        {
            await using var release = Sql("SELECT queue.release($1, $2)", id, token);
            await release.ExecuteNonQueryAsync();
            return;
        }
    }
    // What the work writes commits together with the task, or not at all.
    await using var transaction = await db.BeginTransactionAsync();
    var to = letter.RootElement.GetProperty("to").GetString();
    await using var send = Sql("INSERT INTO letters_sent (address) VALUES ($1)", to);
    await send.ExecuteNonQueryAsync();
    await using var complete = Sql("SELECT queue.complete($1, $2)", id, token);
    await complete.ExecuteNonQueryAsync();
    await transaction.CommitAsync();
}

while (!stopping)
{
    if (await Claim(args[0]) is not { } task)
    {
        await using var wait = Sql("CALL queue.wait(timeout => '1 second')");
        await wait.ExecuteNonQueryAsync();
        continue;
    }
    try
    {
        await Handle(task.Id, task.Token, task.Payload);
    }
    catch (Exception error)
    {
        await using var fail = Sql("SELECT queue.fail($1, $2, $3)", task.Id, task.Token, error.Message);
        try
        {
            await fail.ExecuteNonQueryAsync();
        }
        catch (PostgresException refused) when (refused.SqlState is "QX001" or "QX003")
        {
            // Another worker has the task, or has finished it.
            Console.Error.WriteLine($"task {task.Id}: {refused.MessageText}");
        }
    }
}
