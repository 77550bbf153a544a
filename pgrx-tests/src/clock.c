/*
 * A clock that can be set, put between a server and the system's with LD_PRELOAD: see clock.rs.
 *
 * A server asks for the time in signal handlers too, wherever they interrupt it, and in what it forks. So there
 * is no state here but one number, in a file that all of them map: nothing is opened, allocated or locked.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* See FakeClock::set: the offset in microseconds times four, and in the last two bits the speed's step. */
static const int64_t *setting;

__attribute__((constructor)) static void map_setting(void)
{
	const char *path = getenv("FAKE_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *place = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*setting), PROT_READ, MAP_SHARED, file, 0);

	/* Without it the test would pass by the system's clock. */
	if (place == MAP_FAILED)
		abort();
	close(file);
	setting = place;
}

static int64_t microseconds(void)
{
	int64_t now = __atomic_load_n(setting, __ATOMIC_RELAXED);
	struct timespec real;

	syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
	return (((real.tv_sec * INT64_C(1000000) + real.tv_nsec / 1000) << (now & 3)) >> 1) + (now >> 2);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (clock != CLOCK_REALTIME)
		return syscall(SYS_clock_gettime, clock, time);
	int64_t now = microseconds();
	*time = (struct timespec) {now / 1000000, now % 1000000 * 1000};
	return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	int64_t now = microseconds();

	(void) zone;
	*time = (struct timeval) {now / 1000000, now % 1000000};
	return 0;
}

time_t time(time_t *place)
{
	time_t now = microseconds() / 1000000;

	if (place)
		*place = now;
	return now;
}
