// A worker: claims letters, prints them page by page, and sends each exactly once.
//
//     DATABASE_URL='jdbc:postgresql://localhost/shop?user=me' java -cp postgresql.jar Worker.java mailer-1

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Set;
import sun.misc.Signal;

public class Worker {
    /** Another worker has the task, or has finished it. */
    static final Set<String> LOST = Set.of("QX001", "QX003");
    static volatile boolean stopping = false;

    record Task(long id, long token, String to, String pages) {}

    /** Runs a statement with its arguments, and returns the first column of its first row. */
    static Object sql(Connection db, String statement, Object... arguments) throws SQLException {
        try (PreparedStatement prepared = db.prepareStatement(statement)) {
            for (int i = 0; i < arguments.length; i++) prepared.setObject(i + 1, arguments[i]);
            if (!prepared.execute()) return null;
            ResultSet row = prepared.getResultSet();
            return row.next() ? row.getObject(1) : null;
        }
    }

    static Task claim(Connection db, String name) throws SQLException {
        String claim = "SELECT id, token, payload ->> 'to', payload ->> 'pages' FROM queue.claim(worker => ?)";
        try (PreparedStatement prepared = db.prepareStatement(claim)) {
            prepared.setString(1, name);
            ResultSet row = prepared.executeQuery();
            return row.next() ? new Task(row.getLong(1), row.getLong(2), row.getString(3), row.getString(4)) : null;
        }
    }

    static void handle(Connection db, Task task) throws Exception {
        int pages = task.pages == null ? 1 : Integer.parseInt(task.pages);
        for (int page = 1; page <= pages; page++) {
            Thread.sleep(20); // The work, a piece at a time.
            String extend = "SELECT cancel_requested FROM queue.extend(?, ?, progress => jsonb_build_object('page', ?))";
            if ((Boolean) sql(db, extend, task.id, task.token, page)) {
                sql(db, "SELECT queue.confirm_cancel(?, ?)", task.id, task.token);
                return;
            }
            if (stopping) {
                sql(db, "SELECT queue.release(?, ?)", task.id, task.token);
                return;
            }
        }
        // What the work writes commits together with the task, or not at all.
        db.setAutoCommit(false);
        sql(db, "INSERT INTO letters_sent (address) VALUES (?)", task.to);
        sql(db, "SELECT queue.complete(?, ?)", task.id, task.token);
        db.commit();
    }

    static void report(Connection db, Task task, Exception error) throws SQLException {
        try {
            sql(db, "SELECT queue.fail(?, ?, ?)", task.id, task.token, error.toString());
        } catch (SQLException refused) {
            if (refused.getSQLState() == null || !LOST.contains(refused.getSQLState())) throw refused;
            System.err.println("task " + task.id + ": " + refused.getMessage());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Signal.handle(new Signal("TERM"), signal -> stopping = true);
        try (Connection db = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
            while (!stopping) {
                Task task = claim(db, arguments[0]);
                if (task == null) {
                    sql(db, "CALL queue.wait(timeout => '1 second')");
                    continue;
                }
                try {
                    handle(db, task);
                } catch (Exception error) {
                    if (!db.getAutoCommit()) db.rollback();
                    db.setAutoCommit(true);
                    report(db, task, error);
                }
                db.setAutoCommit(true);
            }
        }
    }
}
